//go:build unix

package host

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestCallbacks checks that a callback which does not return, or calls the host, leaves nothing half done: the plugin runs or does not, and
// Close returns.
func TestCallbacks(t *testing.T) {
	for name, callback := range map[string]func(*Host){
		"panics":             func(*Host) { panic("oops") },
		"ends its goroutine": func(*Host) { runtime.Goexit() },
		"calls the host":     func(h *Host) { h.Plugins() },
	} {
		t.Run("Events "+name, func(t *testing.T) {
			h := &Host{}
			h.Events = func(Event) { callback(h) }
			initialize(t, h)
			p, err := launchAnyhow(h, self("polite"))
			if err != nil {
				t.Error(err)
			}
			closeHost(t, h)
			if p != nil {
				done(t, p)
			}
		})
		t.Run("Admit "+name, func(t *testing.T) {
			h := newHost(t)
			spec := self("polite")
			spec.Admit = func(context.Context, plugin.Pin) error {
				callback(h)
				return nil
			}
			p, err := launchAnyhow(h, spec)
			if admitted := name == "calls the host"; (err == nil) != admitted || !admitted && !strings.Contains(err.Error(), "Admit failed: it ") {
				t.Errorf("the error is %v", err)
			}
			closeHost(t, h)
			if p != nil {
				done(t, p)
			}
		})
	}
}

// launchAnyhow launches a plugin in a goroutine of its own, as a caller that recovers from a panic does.
func launchAnyhow(h *Host, spec Spec) (p *PluginProcess, err error) {
	returned := make(chan struct{})
	err = errors.New("Launch did not return")
	go func() {
		defer close(returned)
		defer func() { _ = recover() }()
		p, err = h.Launch(context.Background(), spec)
	}()
	<-returned
	return p, err
}

// closeHost closes a host, which must not take longer than patience allows.
func closeHost(t *testing.T, h *Host) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		h.Close(context.Background())
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("Close does not return")
	}
}

// TestOrder calls each method before Initialize, in use and after Close, with specs that are right and wrong: the state of the host counts
// before the spec, and nobody is asked about a plugin that is not launched.
func TestOrder(t *testing.T) {
	asked := 0
	admit := func(context.Context, plugin.Pin) error { asked++; return nil }
	specs := map[string]Spec{
		"empty":                {},
		"without a program":    {Args: []string{"/no/such/program"}, Admit: admit},
		"with a nil file":      {Args: []string{"true"}, Admit: admit, ExtraFiles: []*os.File{nil}},
		"with a bad digest":    {Args: []string{"true"}, Admit: admit, SHA256: "x"},
		"with a bad protocol":  {Args: []string{"true"}, Admit: admit, Protocol: "x"},
		"with a bad user":      {Args: []string{"true"}, Admit: admit, User: "no such user"},
		"with negative memory": {Args: []string{"true"}, Admit: admit, Limits: plugin.Limits{Memory: -1}},
		"with negative CPU":    {Args: []string{"true"}, Admit: admit, Limits: plugin.Limits{CPU: -1}},
		"with negative tasks":  {Args: []string{"true"}, Admit: admit, Limits: plugin.Limits{Processes: -1}},
		"with negative files":  {Args: []string{"true"}, Admit: admit, Limits: plugin.Limits{OpenFiles: -1}},
		"with a NUL byte":      {Args: []string{"true"}, Admit: admit, Env: []string{"A=\x00"}},
	}
	h := &Host{}
	all := func(when string, want error) {
		for name, spec := range specs {
			if _, err := h.Launch(t.Context(), spec); err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("%s, %s: %v", when, name, err)
			}
		}
		if _, err := h.NewAdmissionPlugin(nil); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: an admission plugin without a command line: %v", when, err)
		}
		if _, err := h.Adopt(t.Context()); want != nil && !errors.Is(err, want) {
			t.Errorf("%s: Adopt: %v", when, err)
		}
	}
	all("before Initialize", ErrNotInitialized)
	h.AdmissionTimeout = -1
	if err := h.Initialize(pluginConfig()); err == nil {
		t.Error("a negative AdmissionTimeout was accepted")
	}
	h.AdmissionTimeout = 0
	initialize(t, h)
	all("in use", nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	h.Close(ended)
	all("after Close", ErrClosed)
	h.Close(t.Context())
	if asked > 0 {
		t.Errorf("Admit was asked %d times", asked)
	}
}
