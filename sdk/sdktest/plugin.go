package sdktest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/pluginlog"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk/internal/launched"
)

// Plugin is a plugin that runs in the test's process. Its methods are safe for concurrent use.
type Plugin struct {
	calls *calls // nil if it was not launched
	log   printed
	stop  func() // asks it to stop
	ended chan struct{}
	err   error       // of run, once ended
	asked atomic.Bool // for the error
}

// Start runs a plugin that no host launched: it must create its socket at a path from [Host.Socket]. It logs to the test's log. run is the
// function that the plugin's main calls, and which calls sdk.Serve. Stop and Wait return the error of run; if the test calls neither, an
// error fails it.
func (h *Host) Start(run func(ctx context.Context) error) *Plugin {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	return h.begin(launched.With(ctx, launched.Alone(h.t.Output())), &Plugin{stop: cancel}, cancel, run)
}

// Launch runs a plugin as if the host had launched it: the handshake has the paths of its socket and the host's, Logs returns its log,
// CheckAdmission calls it, and Stop closes its standard input.
func (h *Host) Launch(run func(ctx context.Context) error) *Plugin {
	h.t.Helper()
	stdin, write, err := os.Pipe()
	h.must(err)
	h.mu.Lock()
	h.launched++
	n := h.launched
	h.mu.Unlock()
	calls := &calls{
		ticket: rand.Text(), listMetadata: h.listMetadata, hello: make(chan struct{}), open: map[uint64]chan *pluginv1.Resolution{},
	}
	hostSocket := filepath.Join(h.dir, fmt.Sprintf("host-%d.sock", n))
	stopServing, err := calls.serve(hostSocket)
	h.must(err)
	log := printed{pluginlog.New("", nil, -1)}
	session := launched.New(handshake.Handshake{
		Version: handshake.Version, HostSocket: hostSocket, Ticket: calls.ticket, PluginSocket: h.Socket(fmt.Sprintf("launched-%d.sock", n)),
	}, stdin, log)
	p := &Plugin{calls: calls, log: log, stop: sync.OnceFunc(func() { _ = write.Close() })}
	ctx := launched.With(context.Background(), session)
	return h.begin(ctx, p, func() {
		p.stop()
		_ = stdin.Close() // which sdk.Run has done if it was called
		stopServing()
	}, run)
}

// begin runs the plugin in a goroutine, and calls done after it has returned.
func (h *Host) begin(ctx context.Context, p *Plugin, done func(), run func(context.Context) error) *Plugin {
	h.t.Helper()
	if run == nil {
		done()
		h.t.Fatal("the function of Start or Launch is nil")
	}
	p.ended = make(chan struct{})
	go func() {
		defer close(p.ended)
		defer done()
		p.err = errors.New("the plugin's goroutine ended without a return") // t.FailNow in it, for example
		p.err = run(ctx)
	}()
	h.t.Cleanup(func() {
		asked := p.asked.Load()
		if err := p.Stop(); err != nil && !asked {
			h.t.Errorf("the plugin ended with: %v", err)
		}
	})
	return p
}

// Stop asks the plugin to stop, waits until it has, and returns its error. Calling it again has no effect.
func (p *Plugin) Stop() error {
	p.stop()
	return p.Wait()
}

// Wait waits until the plugin has ended by itself and returns its error.
func (p *Plugin) Wait() error {
	p.asked.Store(true)
	<-p.ended
	return p.err
}

// Logs returns the latest 256 KiB of a launched plugin's log, in order, as the host reads it.
func (p *Plugin) Logs() []slog.Record {
	if p.calls == nil {
		return nil
	}
	var records []slog.Record
	for _, r := range p.log.Tail(0) {
		record := slog.NewRecord(r.Time, r.Level, r.Message, 0)
		record.AddAttrs(r.Attrs...)
		records = append(records, record)
	}
	return records
}

// printed is the standard error of a launched plugin. Each Write is one line.
type printed struct{ *pluginlog.Log }

func (p printed) Write(line []byte) (int, error) {
	return len(line), p.Drain(bytes.NewReader(line), pluginlog.Stderr)
}

// CheckAdmission asks a launched plugin, which serves admissions (package sdk/admission), whether the package instance may be deployed, and
// returns nil if so. A refusal is an error with a gRPC status. It waits for the answer.
func (p *Plugin) CheckAdmission(ctx context.Context, pin plugin.Pin) error {
	if p.calls == nil {
		return errors.New("cannot check an admission: the plugin was not launched, use Host.Launch")
	}
	return p.calls.check(ctx, p.ended, pin)
}
