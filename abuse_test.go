package patchbay_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	hosting "github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/trust"
)

// TestRefuses checks that New refuses configurations that could only fail later.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, change := range map[string]func(*patchbay.Config){
		"no directory":         func(c *patchbay.Config) { c.PluginDirs = nil },
		"an empty directory":   func(c *patchbay.Config) { c.PluginDirs = append(c.PluginDirs, "") },
		"a directory twice":    func(c *patchbay.Config) { c.PluginDirs = append(c.PluginDirs, dir) },
		"a nested directory":   func(c *patchbay.Config) { c.PluginDirs = append(c.PluginDirs, dir+"/a") },
		"a deprecated one":     func(c *patchbay.Config) { c.DeprecatedPluginDir = dir + "/a" },
		"a nil handler":        func(c *patchbay.Config) { c.Handlers = map[string]cache.PluginHandler{"T": nil} },
		"a handler of no type": func(c *patchbay.Config) { c.Handlers = map[string]cache.PluginHandler{"T/x": patchbay.AcceptHandler()} },
		"MaxDepth":             func(c *patchbay.Config) { c.Limits.MaxDepth = -1 },
		"MaxSockets":           func(c *patchbay.Config) { c.Limits.MaxSockets = -1 },
		"MaxUserDirs":          func(c *patchbay.Config) { c.Limits.MaxUserDirs = -1 },
		"MaxDirs":              func(c *patchbay.Config) { c.Limits.MaxDirs = -1 },
		"UnreachableGrace":     func(c *patchbay.Config) { c.UnreachableGrace = -1 },
		"a timeout":            func(c *patchbay.Config) { c.Limits.Timeouts.Dial = -1 },
		"a timeout of a type":  func(c *patchbay.Config) { c.Limits.TypeTimeouts = map[string]plugin.Timeouts{"T": {Handler: -1}} },
		"a timeout of no type": func(c *patchbay.Config) { c.Limits.TypeTimeouts = map[string]plugin.Timeouts{"T/x": {}} },
		"a bound of text":      func(c *patchbay.Config) { c.Limits.Bounds.Text = -1 },
		"a bound of plugins":   func(c *patchbay.Config) { c.Limits.Bounds.TotalPlugins = -1 },
		"a dispenser":          func(c *patchbay.Config) { c.Dispensers = map[string]dynamicplugins.PluginDispenser{"T": nil} },
		"a dispenser of a type": func(c *patchbay.Config) {
			c.RegistryOptions = []dynamicplugins.Option{dynamicplugins.WithConnDispenser("T", nil)}
		},
		"connections": func(c *patchbay.Config) {
			c.RegistryOptions = []dynamicplugins.Option{dynamicplugins.WithConnections(nil)}
		},
		"a service URL":   func(c *patchbay.Config) { c.Host.ServiceURL = "\xff" },
		"an unknown user": func(c *patchbay.Config) { c.Trust.Owners.Users = []string{"no such user"} },
		"an admission of nobody": func(c *patchbay.Config) {
			c.Admission = func(*hosting.Host) (plugin.AdmissionPlugin, error) { return nil, nil } //nolint:nilnil // the case itself
		},
	} {
		cfg := patchbay.Config{PluginDirs: []string{dir}}
		change(&cfg)
		if _, err := patchbay.New(cfg); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.Internal().SetTimeouts(plugin.Timeouts{Notify: -1}, nil); err == nil {
		t.Error("SetTimeouts accepted a negative timeout")
	}
	for name, add := range map[string]func(){
		"a nil handler": func() { rt.AddHandler("T", nil) },
		"no type":       func() { rt.AddHandler("", patchbay.AcceptHandler()) },
		"a slash":       func() { rt.AddHandler("T/x", patchbay.AcceptHandler()) },
	} {
		if !panics(add) {
			t.Errorf("AddHandler accepted %s", name)
		}
	}
}

func panics(do func()) (did bool) {
	defer func() { did = recover() != nil }()
	do()
	return false
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	if _, err := patchbay.New(patchbay.Config{}); err == nil || !strings.Contains(err.Error(), "PluginDirs") {
		t.Errorf("without a directory: %v", err)
	}
	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{filepath.Join(os.DevNull, "plugins")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.Run(t.Context()); err == nil || !strings.Contains(err.Error(), os.DevNull) {
		t.Errorf("with a directory that cannot be made: %v", err)
	}
	if err := rt.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a second Run: %v", err)
	}
}

// TestOrder calls every method before, during and after Run, with canceled contexts too, and checks that each returns.
func TestOrder(t *testing.T) {
	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	name := plugin.Name{Type: "T", Name: "foo"}
	all := func() {
		rt.AddHandler("T", patchbay.AcceptHandler())
		rt.RemoveHandler("T")
		rt.RemoveHandler("none")
		rt.Internal().Reconsider()
		rt.Internal().Publish(plugin.Event{})
		rt.Plugins()
		rt.Internal().PluginsNamed("")
		rt.Internal().Refusals()
		rt.Conditions()
		rt.Internal().LastEvents(-1)
		rt.Internal().LaunchedAs("")
		for range rt.Events(ended, -1) {
		}
		if _, err := rt.Internal().PastEvents(); err != nil {
			t.Error(err)
		}
		if err := rt.Internal().SetTimeouts(plugin.Timeouts{}, nil); err != nil {
			t.Error(err)
		}
		for call, err := range map[string]error{
			"WaitForPlugins": rt.WaitForPlugins(ended, name), "WaitForPlugins without a name": rt.WaitForPlugins(t.Context(), plugin.Name{}),
			"Retry": rt.Internal().Retry("T", "foo"), "ReleaseName": rt.Internal().ReleaseName(ended, "T", "foo"), "Set": rt.Launcher().Set([]launcher.Plugin{{}}),
		} {
			if err == nil {
				t.Errorf("%s: no error", call)
			}
		}
	}
	all()
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	<-rt.Ready()
	all()
	if err := rt.Run(ctx); err == nil {
		t.Error("a second Run was accepted")
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	all()
	if err := rt.Internal().Check(t.Context()); err == nil {
		t.Error("a runtime that does not run answers")
	}
}

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

// TestCallbacks checks that plugins are registered and the Runtime stops although callbacks panic or end their goroutine.
func TestCallbacks(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("oops") }, "end their goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			rt, err := patchbay.New(patchbay.Config{
				PluginDirs:    []string{dir},
				State:         &failing{fail: fail},
				ClientTimeout: func(string, string) *time.Duration { return nil },
				Dispensers: map[string]dynamicplugins.PluginDispenser{
					"T": func(*dynamicplugins.PluginInfo) (any, error) { fail(); return "", nil },
				},
				Observer: patchbay.Observer{
					Event: func(plugin.Event) { fail() }, Attempt: func(plugin.Attempt) { fail() }, Refused: func(trust.Reason) { fail() },
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
			waiting, stop := context.WithTimeout(ctx, 2*time.Minute)
			defer stop()
			if err := rt.WaitForPlugins(waiting, plugin.Name{Type: "T", Name: "foo"}); err != nil {
				t.Error(err)
			}
			dispensed := make(chan struct{})
			go func() {
				defer close(dispensed)
				defer func() { _ = recover() }()
				_, _ = rt.Registry().DispensePlugin("T", "foo")
			}()
			<-dispensed
			if _, err := rt.Registry().PluginForAlloc("T", "foo", rt.Internal().PluginsNamed("foo")[0].Instance); err != nil {
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

// TestTypeTimeoutsAreCopied reproduces PAINS 212: the caller may write to the timeouts that it passed to New or SetTimeouts. Where a runtime
// reads them later, the race detector reports it.
func TestTypeTimeoutsAreCopied(t *testing.T) {
	for _, setting := range []bool{false, true} {
		passed := map[string]plugin.Timeouts{"T": {Handler: time.Minute}}
		cfg := patchbay.Config{PluginDirs: []string{t.TempDir()}}
		if !setting {
			cfg.Limits.TypeTimeouts = passed
		}
		rt, err := patchbay.New(cfg)
		if err == nil && setting {
			err = rt.Internal().SetTimeouts(plugin.Timeouts{}, passed)
		}
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- rt.Run(ctx) }()
		passed["T"] = plugin.Timeouts{Handler: -time.Minute}
		select {
		case <-rt.Ready():
			stop()
			err = <-ran
		case err = <-ran:
		}
		stop()
		if err != nil {
			t.Errorf("Run uses what the caller has written since: %v", err)
		}
	}
}
