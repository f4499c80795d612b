package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

func TestAdmission(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admit-all")
	t.Setenv("PATCHBAY_TEST_ADMISSION", file) // the admission plugin inherits it
	admission := config.Admission{Command: []string{os.Args[0]}, Protocol: "cipd", Timeout: time.Minute}
	cfg, r, c := startReloadable(t, func(c *daemon.Options) { c.Admission = admission })
	serveExample(t, cfg, "yes")
	await(t, c, "ExamplePlugin", "yes", client.GoalRegistered)

	serveExample(t, cfg, "no")
	for event, err := range c.Events(within(t), &patchbayv1.WatchEventsRequest{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Name == "no" && event.Kind == "refused" {
			break
		}
	}
	plugins, err := c.Get(within(t), "ExamplePlugin", "no")
	if err != nil || len(plugins) != 1 || plugins[0].State == "registered" || !strings.Contains(plugins[0].LastError, "it is not on the list") {
		t.Errorf("the refused plugin is %+v, %v", plugins, err)
	}

	other := cfg
	other.Admission.Protocol = "patchbay"
	r.set(other, nil)
	if _, err := c.Reload(within(t)); err == nil || !strings.Contains(err.Error(), "needs a restart: admission;") {
		t.Errorf("another admission plugin without a restart: %v", err)
	}

	// A reload lets the admission plugin change its mind, and what it refused is tried at once.
	var due time.Time
	for ; time.Until(due) < 4*time.Second; time.Sleep(10 * time.Millisecond) {
		plugins, err := c.Get(within(t), "ExamplePlugin", "no")
		if err != nil {
			t.Fatal(err)
		}
		if len(plugins) == 1 && plugins[0].NextRetry != nil {
			due = plugins[0].NextRetry.AsTime()
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.set(cfg, nil)
	if _, err := c.Reload(within(t)); err != nil {
		t.Fatal(err)
	}
	await(t, c, "ExamplePlugin", "no", client.GoalRegistered)
	if plugins, err = c.Get(within(t), "ExamplePlugin", "no"); err != nil || len(plugins) != 1 || !plugins[0].RegisteredAt.AsTime().Before(due) {
		t.Errorf("it is %+v, %v; without the reload it was due at %v", plugins, err, due)
	}
}

// TestAdmissionOfCIPDThatIsNotNamed: without protocol: cipd, an admission plugin of CIPD is not waited for, and the plugins that it keeps out
// say what to set.
func TestAdmissionOfCIPDThatIsNotNamed(t *testing.T) {
	program := filepath.Join(t.TempDir(), "admit")
	text := "#!/bin/sh\nread -r handshake # then it would call /cipd.plugin.Host/Log\ncat >/dev/null\nexit 1\n"
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg, _, c := startReloadable(t, func(c *daemon.Options) {
		c.Admission = config.Admission{Command: []string{program}, Protocol: "patchbay", Timeout: time.Minute}
	})
	serveExample(t, cfg, "kept-out")
	for ctx := within(t); ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		plugins, err := c.Get(ctx, "ExamplePlugin", "kept-out")
		if err == nil && len(plugins) == 1 && plugins[0].LastError != "" {
			if !strings.Contains(plugins[0].LastError, `a plugin of CIPD needs the protocol "cipd": set it in`) {
				t.Errorf("it is kept out with %s", plugins[0].LastError)
			}
			return
		}
	}
	t.Error("nothing is said of it")
}

func TestAdmissionWithoutAProgram(t *testing.T) {
	cfg := configIn(t)
	cfg.Admission.Command = []string{""}
	if _, err := daemon.New(cfg); err == nil || !strings.Contains(err.Error(), "admission plugin has an empty path") {
		t.Errorf("it is taken: %v", err)
	}
	cfg.Admission.Command, cfg.Admission.Protocol = nil, "cipd"
	if _, err := daemon.New(cfg); err == nil || !strings.Contains(err.Error(), "name one with admission.command") {
		t.Errorf("a protocol without a plugin that speaks it: %v", err)
	}
}
