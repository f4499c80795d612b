package goplugin_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

// TestDaemonLaunchesFromTheCatalogue takes the way from the configuration to the registry.
func TestDaemonLaunchesFromTheCatalogue(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var p catalogue.Plugin
	p.SetDefaults()
	p.Name, p.Command, p.Env = "unit", []string{os.Args[0]}, map[string]string{modeEnv: "serve", "GORACE": "atexit_sleep_ms=0"}
	p.Protocol, p.Type = catalogue.ProtocolGoPlugin, ptype
	p.GoPlugin.CookieKey, p.GoPlugin.CookieValue, p.GoPlugin.ProtocolVersions = cookieKey, cookieValue, []int{3, 4}
	plugins, err := catalogue.New([]catalogue.Plugin{p})
	if err != nil {
		t.Fatal(err)
	}
	var config daemon.Options
	config.Catalogue = plugins
	config.SetDefaults()
	config.PluginDirs, config.State = []string{filepath.Join(dir, "plugins")}, filepath.Join(dir, "state.db")
	config.ControlSocket, config.Handlers = filepath.Join(dir, "control.sock"), map[string]string{ptype: daemon.HandlerAccept}
	d, err := daemon.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-d.Ready():
	case <-ctx.Done():
		t.Fatal("the daemon is not ready")
	}
	c := client.New(config.ControlSocket)
	defer c.Close()
	found, err := c.Wait(ctx, ptype, "unit", client.GoalRegistered)
	if err != nil {
		t.Fatal(err)
	}
	if found.Source != "launched" || found.Version != "4" {
		t.Errorf("it is %+v, want it launched, with the newest version", found)
	}
}
