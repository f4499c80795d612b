package launcher_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestRefuses checks that Set refuses what could only fail at a launch, or never would, in use and after Close, and that every method
// returns when its context has ended.
func TestRefuses(t *testing.T) {
	f := newFixture(t)
	changed := func(change func(*launcher.Plugin)) launcher.Plugin {
		p := launcher.Plugin{Spec: host.Spec{Name: "a", Args: []string{"true"}}, Manual: true, NoSocket: true}
		change(&p)
		return p
	}
	wrong := map[string]launcher.Plugin{
		"no name":              changed(func(p *launcher.Plugin) { p.Name = "" }),
		"a name with a slash":  changed(func(p *launcher.Plugin) { p.Name = "a/b" }),
		"no command":           changed(func(p *launcher.Plugin) { p.Args = nil }),
		"an unknown upgrade":   changed(func(p *launcher.Plugin) { p.Upgrade = "x" }),
		"an unknown restart":   changed(func(p *launcher.Plugin) { p.Restart.Policy = "x" }),
		"the internal restart": changed(func(p *launcher.Plugin) { p.Restart.Policy = "on-demand" }),
		"a negative backoff":   changed(func(p *launcher.Plugin) { p.Restart.Backoff.Min = -1 }),
		"a negative window":    changed(func(p *launcher.Plugin) { p.Restart.Window = -1 }),
		"a negative stop":      changed(func(p *launcher.Plugin) { p.StopTimeout = -1 }),
		"a negative idle":      changed(func(p *launcher.Plugin) { p.Idle = -1 }),
		"a negative interval":  changed(func(p *launcher.Plugin) { p.Health.Interval = -1 }),
		"a negative limit":     changed(func(p *launcher.Plugin) { p.Limits.Memory = -1 }),
		"a nil file":           changed(func(p *launcher.Plugin) { p.ExtraFiles = []*os.File{nil} }),
		"an unknown protocol":  changed(func(p *launcher.Plugin) { p.Spec.Protocol = "x" }),
		"a malformed digest":   changed(func(p *launcher.Plugin) { p.SHA256 = "x" }),
		"a NUL in a variable":  changed(func(p *launcher.Plugin) { p.Env = []string{"A=\x00"} }),
		"a socket of its own":  changed(func(p *launcher.Plugin) { p.PluginSocket = "/a" }),
		"on demand, no server": changed(func(p *launcher.Plugin) { p.OnDemand = true }),
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, state := range []string{"in use", "after Close"} {
		for name, p := range wrong {
			if err := f.Set([]launcher.Plugin{p}); err == nil || errors.Is(err, launcher.ErrProgram) {
				t.Errorf("%s, %s: the error is %v", state, name, err)
			}
		}
		_, logErr := f.Log("")
		for call, err := range map[string]error{
			"Start": f.Start("none"), "Stop": f.Stop("none"), "Restart": f.Restart(ended, "none"), "Start without a name": f.Start(""),
			"AwaitReplacement": f.AwaitReplacement(ended, "none"), "Log": logErr,
		} {
			if err == nil {
				t.Errorf("%s, %s of an unknown plugin: no error", state, call)
			}
		}
		f.SocketRemoved("")
		if _, state, ok := f.FrontAt(""); ok || state != "" {
			t.Errorf("%s there is a front", state)
		}
		f.Close()
		f.CloseFronts()
	}
	if plugins := f.Plugins(); len(plugins) > 0 {
		t.Errorf("the launcher has %v", plugins)
	}
	defer func() {
		if recover() == nil {
			t.Error("New accepted a Config without a Host")
		}
	}()
	launcher.New(launcher.Config{})
}

// TestCallbacks: functions of the launcher's user that do not return end neither the program nor what the launcher does for others.
func TestCallbacks(t *testing.T) {
	for name, rude := range map[string]func(){"panics": func() { panic("oops") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(_ *fixture, cfg *launcher.Config) {
				cfg.Observe = func(plugin.Event) { rude() }
				cfg.Registrations = registrations(func(context.Context, string, func(error)) error {
					rude()
					return nil
				})
			})
			f.set(self("serve"))
			f.until("a failure", func() bool {
				return strings.Contains(f.status("serve").LastError, "AwaitRegistered did not return: it ")
			})
		})
	}
}
