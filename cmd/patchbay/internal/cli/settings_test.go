package cli

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
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
	sources := command.SourcesFor(command.Paths{
		PluginDir: filepath.Join(dir, "p"), ControlSocket: filepath.Join(dir, "c.sock"), State: filepath.Join(dir, "s.db"), Config: file,
	})
	loaded, err := command.Load(sources)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(daemon.Options{Loaded: *loaded, Load: func() (*config.Loaded, error) { return command.Load(sources) }})
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

// TestRole: the commands grant what the configuration needs, in a form that a shell reads as it is meant.
func TestRole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "patchbay.yaml")
	text := `{apiVersion: patchbay.dev/v1alpha1, kind: Config, fleet: {exclusive: [T], etcd: {endpoints: ["https://h:1"], user: u, passwordFile: p,
		prefix: "/it's mine", namespace: x}}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"n-1 --config " + file: `etcdctl role get n-1 >/dev/null 2>&1 || etcdctl role add n-1
etcdctl role grant-permission --prefix=true n-1 readwrite '/it'\''s mine/x/v1/nodes/n-1/'
etcdctl role grant-permission --prefix=true n-1 read '/it'\''s mine/x/v1/nodes/'
etcdctl role grant-permission n-1 readwrite '/it'\''s mine/x/v1/settings/n-1'
etcdctl role grant-permission --prefix=true n-1 read '/it'\''s mine/x/v1/settings/'
etcdctl role grant-permission --prefix=true n-1 read '/it'\''s mine/x/v1/elections/'
etcdctl role grant-permission --prefix=true n-1 readwrite '/it'\''s mine/x/v1/index/'
etcdctl role grant-permission --prefix=true n-1 readwrite '/it'\''s mine/x/v1/elections/@node/n-1/'
etcdctl role grant-permission n-1 readwrite '/it'\''s mine/x/v1/elections/@base/n-1'
etcdctl user get n-1 >/dev/null 2>&1 || etcdctl user add n-1 </dev/tty
etcdctl user grant-role n-1 n-1
`,
		"n --operator": `etcdctl role get n >/dev/null 2>&1 || etcdctl role add n
etcdctl role grant-permission --prefix=true n readwrite /patchbay/default/v1/nodes/
etcdctl role grant-permission n readwrite /patchbay/default/v1/settings/n
etcdctl role grant-permission --prefix=true n read /patchbay/default/v1/settings/
etcdctl role grant-permission --prefix=true n read /patchbay/default/v1/elections/
etcdctl role grant-permission --prefix=true n readwrite /patchbay/default/v1/index/
etcdctl user get n >/dev/null 2>&1 || etcdctl user add n --no-password
etcdctl user grant-role n n
`,
		"'x;y'": "", "": "",
	} {
		root := newRootFor(command.Paths{Config: filepath.Join(t.TempDir(), "missing.yaml")})
		var stdout, stderr strings.Builder
		root.SetArgs(append([]string{"fleet", "role"}, strings.Fields(args)...))
		root.SetOut(&stdout)
		code := report(&stderr, root.ExecuteContext(t.Context()))
		if stdout.String() != want || (code == exitDone) != (want != "") || want == "" && code != exitUsage {
			t.Errorf("fleet role %s: %d, %s\n%s\nwant\n%s", args, code, &stderr, &stdout, want)
		}
	}
}
