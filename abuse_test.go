package patchbay_test

import (
	"context"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// failing is a storage whose first save does not return.
type failing struct {
	memory
	fail   func()
	failed atomic.Bool
}

func (f *failing) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	if !f.failed.Swap(true) {
		f.fail()
	}
	return f.memory.PutDynamicPluginRegistryState(state)
}

// TestCallbacks checks that callbacks which panic or end their goroutine keep no plugin from being registered, and the Runtime from ending.
func TestCallbacks(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("oops") }, "end their goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			rt, err := patchbay.New(patchbay.Config{
				PluginDirs:    []string{dir},
				State:         &failing{fail: fail},
				ClientTimeout: func(string, string) *time.Duration { return nil },
				Dispensers:    map[string]dynamicplugins.PluginDispenser{"T": func(*dynamicplugins.PluginInfo) (any, error) { fail(); return nil, nil }},
				Observer: patchbay.Observer{
					Event: func(reconciler.Event) { fail() }, Attempt: func(reconciler.Attempt) { fail() }, Refused: func(trust.Reason) { fail() },
					Dispense: func(string, error) { fail() }, FileEventsLost: fail, Resync: fail, CallsLimited: func(string) { fail() },
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			rt.AddHandler("T", patchbay.AcceptHandler())
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- rt.Run(ctx) }()
			p := pluginwatcher.NewTestExamplePlugin("foo", "T", filepath.Join(dir, "foo.sock"), "v1")
			if err := p.Serve(); err != nil {
				t.Fatal(err)
			}
			waiting, stop := context.WithTimeout(ctx, patience)
			defer stop()
			if err := rt.WaitForPlugins(waiting, patchbay.PluginName{Type: "T", Name: "foo"}); err != nil {
				t.Error(err)
			}
			dispensed := make(chan struct{})
			go func() {
				defer close(dispensed)
				defer func() { _ = recover() }()
				_, _ = rt.Registry().DispensePlugin("T", "foo")
			}()
			<-dispensed
			if _, err := rt.Registry().PluginForAlloc("T", "foo", rt.PluginsNamed("foo")[0].Instance); err != nil {
				t.Error(err)
			}
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
