package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// What the configuration says of a process is what the launcher is told, and nothing is inherited.
func TestToLaunch(t *testing.T) {
	var p catalogue.Plugin
	p.SetDefaults()
	p.Name, p.Command, p.SHA256, p.Interpreter = "name", []string{"/bin/x", "arg"}, strings.Repeat("ab", 32), "/bin/sh"
	p.User, p.Group, p.Env = "user", "group", map[string]string{"B": "2", "A": "1"}
	p.Health = plugin.HealthCheck{Interval: time.Minute, Timeout: 10 * time.Second, Misses: 2}
	p.Limits = catalogue.Limits{Memory: 1 << 20, CPU: 500, OpenFiles: 64}
	var bare catalogue.Plugin
	bare.SetDefaults()
	bare.Name, bare.Command = "other", []string{"x"}
	c, err := catalogue.New([]catalogue.Plugin{p, bare})
	if err != nil {
		t.Fatal(err)
	}
	want := []launcher.Plugin{
		{Health: plugin.HealthCheck{Interval: time.Minute, Timeout: 10 * time.Second, Misses: 2}, Spec: host.Spec{
			Name: "name", Args: []string{"/bin/x", "arg"}, Env: []string{"A=1", "B=2"}, Dir: "/", SHA256: strings.Repeat("ab", 32),
			Interpreter: "/bin/sh", User: "user", Group: "group", Limits: plugin.Limits{Memory: 1 << 20, CPU: 500, OpenFiles: 64}, NoNewPrivs: true,
		}},
		{
			Health: plugin.HealthCheck{Interval: time.Second, Timeout: 500 * time.Millisecond, Misses: 3},
			Spec:   host.Spec{Name: "other", Args: []string{"x"}, Env: []string{}, Dir: "/", NoNewPrivs: true},
		},
	}
	for i := range want {
		want[i].Upgrade = plugin.UpgradeSideBySide
		want[i].Idle, want[i].StartTimeout, want[i].StopTimeout = 5*time.Minute, time.Minute, 5*time.Second
		want[i].Restart = plugin.RestartPolicy{
			Policy: plugin.RestartOnFailure, Backoff: plugin.Backoff{Min: 500 * time.Millisecond, Max: time.Minute}, Limit: 10, Window: 10 * time.Minute,
		}
	}
	if diff := cmp.Diff(want, toLaunch(c, nil)); diff != "" {
		t.Error(diff)
	}
}

// TestNoMetadata: of a plugin that is not in the catalogue there is nothing to say, which is no fault.
func TestNoMetadata(t *testing.T) {
	var m metadata
	entries, next, err := m.ListMetadata(t.Context(), plugin.Pin{PackageName: "discovered"}, nil, plugin.Page{})
	if err != nil || len(entries) != 0 || next != "" {
		t.Errorf("got %v, %q, %v, want an empty list", entries, next, err)
	}
}
