package daemon

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestReloadedClientTimeouts reloads over a runtime that does not run.
func TestReloadedClientTimeouts(t *testing.T) {
	cfg := Options{Loaded: config.Loaded{Config: config.Config{
		PluginDirs: []string{t.TempDir()}, State: "s", ControlSocket: "c", ClientTimeouts: map[string]time.Duration{"T": 1},
	}}}
	cfg.Load = func() (*config.Loaded, error) {
		next := cfg.Loaded
		next.ClientTimeouts = map[string]time.Duration{"T": 2}
		return &next, nil
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	runtime := &pluginruntime.Runtime{Watcher: &pipeline.Watcher{Dirs: cfg.PluginDirs}}
	if err := runtime.Open(); err != nil {
		t.Fatal(err)
	}
	defer runtime.Registry().Shutdown()
	d.reloads.begin(&assembly{runtime: runtime, guard: access.NewAuthorizer("c", access.Policy{}, access.NewAuditor(func(plugin.Event) {}, slog.New(slog.DiscardHandler))), handlers: &handlerSet{}})
	close(d.ready)
	for want := range time.Duration(2) {
		if got := d.clientTimeout("T", "n"); got == nil || *got != want+1 {
			t.Errorf("got %v, want %v", got, want+1)
		}
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClientTimeouts(t *testing.T) {
	var d Daemon
	d.timeouts.Store(new(map[string]time.Duration))
	if got := d.clientTimeout("T", "n"); got != nil {
		t.Errorf("got %v, want none", *got)
	}
	d.timeouts.Store(&map[string]time.Duration{"T": 1, "T/n/m": 2, "U/n": 3})
	for plugin, want := range map[[2]string]time.Duration{{"T", "n"}: 1, {"T", "n/m"}: 2, {"U", "n"}: 3, {"U", "m"}: 0, {"", "T"}: 0} {
		got := d.clientTimeout(plugin[0], plugin[1])
		if (got == nil) != (want == 0) || got != nil && *got != want {
			t.Errorf("timeout of %v is %v, want %v", plugin, got, want)
		}
	}
}

// TestFleetRulesCanBeReloaded: other rules for calls and offers need no restart, unlike the rest of the fleet.
func TestFleetRulesCanBeReloaded(t *testing.T) {
	for want, change := range map[string]func(*config.Fleet){
		"fleet.serve.allow": func(f *config.Fleet) { f.Serve.Allow = []config.FleetAllow{{Identity: "a"}} },
		"fleet.offers":      func(f *config.Fleet) { f.Offers = []config.FleetOffer{{Node: "a"}} },
	} {
		after := config.Loaded{}
		change(&after.Fleet)
		if changed, restart := differences(&config.Loaded{}, &after); len(restart) > 0 || !slices.Equal(changed, []string{want}) {
			t.Errorf("changed are %q, a restart needs %q", changed, restart)
		}
	}
}
