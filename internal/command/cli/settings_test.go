package cli

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/internal/command/config"
)

// TestRestartTags changes one key after another under a running daemon, and expects a reload to be refused for exactly those that the
// reference says need a restart.
func TestRestartTags(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "patchbay.yaml")
	sources := sourcesFor(paths{
		pluginDir: filepath.Join(dir, "p"), controlSocket: filepath.Join(dir, "c.sock"), state: filepath.Join(dir, "s.db"), config: file,
	})
	_, c, err := load(sources)
	if err != nil {
		t.Fatal(err)
	}
	c.Load = func() (daemon.Config, error) {
		_, next, err := load(sources)
		return next, err
	}
	d, err := daemon.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	changes := map[string]string{
		"pluginDirs": "[/x]", "deprecatedPluginDir": "/x", "state": "/x", "controlSocket": "/x/y", "dispenseDir": "/x", "http": "127.0.0.1:1",
		"handlers": "{A: accept}", "unhandled": "ignore", "device": "{socketDir: /x}", "tracing": "{percent: 9}", "fleet": "{node: x}",
		"log": "{level: error}", "timeouts": "{dial: 9s}", "typeTimeouts": "{A: {dial: 9s}}", "clientTimeouts": "{A: 9s}", "bounds": "{maxDepth: 9}",
		"admission": "{command: [sh]}", "unreachableGrace": "9s", "plugins": "[{name: a, command: [sh]}]",
		"control": "{roles: {read: {users: [\"1\"]}}}", "trust": "{owners: {users: [\"1\"]}}",
	}
	for field := range reflect.TypeFor[config.Config]().Fields() {
		key := field.Tag.Get("json")
		if key == "apiVersion" || key == "kind" {
			continue
		}
		if changes[key] == "" {
			t.Errorf("this test does not change %s", key)
		}
		text := "apiVersion: patchbay.dev/v1alpha1\nkind: Config\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+key+": "+changes[key]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		changed, err := d.Reload(t.Context())
		if field.Tag.Get("restart") != "" {
			if want := "needs a restart: " + key + "; nothing was changed"; err == nil || err.Error() != want {
				t.Errorf("%s: got %v, %v, want %q", key, changed, err, want)
			}
		} else if err != nil || len(changed) != 1 || !strings.HasPrefix(changed[0], key) {
			t.Errorf("%s: got %q, %v", key, changed, err)
		}
	}
}
