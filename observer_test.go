package patchbay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

func TestObserverAndCheck(t *testing.T) {
	stuck, goOn := make(chan struct{}), make(chan struct{})
	attempts := make(chan plugin.Attempt, 1)
	dispensed := make(chan error, 1)
	dir := t.TempDir()
	rt, err := patchbay.New(patchbay.Config{
		PluginDirs: []string{dir},
		Observer: patchbay.Observer{
			Event: func(e plugin.Event) {
				if e.Kind == plugin.EventRegistered {
					close(stuck)
					<-goOn // an observer must not block
				}
			},
			Attempt:  func(a plugin.Attempt) { attempts <- a },
			Dispense: func(_ string, err error) { dispensed <- err },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	rt.AddHandler("T", patchbay.AcceptHandler())
	if err := rt.Internal().Check(t.Context()); err == nil {
		t.Error("a runtime that does not run answers")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	<-rt.Ready()
	if err := rt.Internal().Check(t.Context()); err != nil {
		t.Error(err)
	}
	p := pluginwatcher.NewTestExamplePlugin("foo", "T", dir+"/foo.sock", "v1")
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	<-stuck
	short, cancelShort := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelShort()
	if err := rt.Internal().Check(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a reconciler that is stuck answers: %v", err)
	}
	close(goOn)
	if err := rt.Internal().Check(t.Context()); err != nil {
		t.Error(err)
	}
	if a := <-attempts; a.Type != "T" || a.Name != "foo" || a.Result != plugin.ResultRegistered || a.Duration <= 0 {
		t.Errorf("attempt %+v", a)
	}
	if _, err := rt.Registry().DispensePlugin("T", "foo"); err == nil || !errors.Is(<-dispensed, err) {
		t.Errorf("dispensing without a dispenser: %v", err)
	}
	if _, err := rt.Registry().Conn(t.Context(), "T", "foo"); err != nil || <-dispensed != nil {
		t.Errorf("a connection: %v", err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
