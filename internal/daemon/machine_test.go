package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/stablesocket"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// TestSocketsThatCannotBe has every path that becomes a socket be as long as it may be, and then one byte longer.
func TestSocketsThatCannotBe(t *testing.T) {
	pad := func(path string, length int) string { return path + strings.Repeat("x", length-len(path)) }
	const name = 63
	for what, c := range map[string]struct {
		field string
		// use puts the directory into the configuration, in which there are longer paths of which it is the beginning.
		use  func(c *Options, dir string)
		rest string
	}{
		"control socket": {"controlSocket", func(c *Options, dir string) { c.ControlSocket = dir }, ""},
		"stable sockets": {"dispenseDir", func(c *Options, dir string) { c.DispenseDir = dir }, "/" + strings.Repeat("t", 18) + "/" +
			strings.Repeat("n", 18) + ".sock"},
		"kubelet.sock": {"device.socketDir", func(c *Options, dir string) {
			c.Handlers, c.Device.SocketDir = map[string]string{"DevicePlugin": HandlerDevice}, dir
		}, "/kubelet.sock"},
		"announced devices": {"device.socketDir", func(c *Options, dir string) {
			c.Handlers, c.Device.SocketDir, c.PluginDirs = map[string]string{"DevicePlugin": HandlerDevice}, "/run/devices", []string{dir}
		}, "/patchbay-device-plugins/zzzzzz.sock"},
		"launched":         {"plugins[0].name", launching(name, func(*catalogue.Plugin) {}), pad("/", name+1) + ".999999.sock"},
		"launched as user": {"plugins[0].name", launching(name, func(p *catalogue.Plugin) { p.User = "0" }), pad("/", name+1) + ".999999/plugin.sock"},
		"go-plugin": {"plugins[0].name", launching(1, func(p *catalogue.Plugin) {
			p.Protocol, p.Type = catalogue.ProtocolGoPlugin, "T"
			p.GoPlugin = catalogue.GoPlugin{CookieKey: "K", CookieValue: "v", ProtocolVersions: []int{1}}
		}), "/.go-plugin/plugin-dir0123456789/plugin0123456789"},
	} {
		for _, more := range []int{0, 1} {
			cfg := Options{Loaded: config.Loaded{Config: config.Config{
				PluginDirs: []string{"/run/plugins"}, State: "/s", ControlSocket: "/run/c.sock", Handlers: map[string]string{"T": HandlerAccept},
			}}}
			dir := pad("/", sock.MaxPath-len(c.rest)+more)
			c.use(&cfg, dir)
			err := errors.Join(append(joined(Validate(cfg.Loaded)), joined(CheckPlugins(&cfg.Loaded))...)...)
			found := ""
			for _, err := range joined(err) {
				field, _ := errors.AsType[*config.FieldError](err)
				found += fmt.Sprintln(field.Field, field)
			}
			switch {
			case more == 0 && err != nil:
				t.Errorf("%s of %d bytes: %s", what, sock.MaxPath, found)
			case more == 1 && (!strings.HasPrefix(found, c.field+" ") || strings.Count(found, "\n") != 1 || !strings.Contains(found, "choose a ")):
				t.Errorf("%s of %d bytes: got %q, want what is wrong with %s", what, sock.MaxPath+1, found, c.field)
			}
		}
	}
}

// launching has a plugin with a long name be launched in a plugin directory.
func launching(name int, change func(*catalogue.Plugin)) func(*Options, string) {
	return func(c *Options, dir string) {
		var p catalogue.Plugin
		p.SetDefaults()
		p.Name, p.Command, p.Autostart = strings.Repeat("n", name), []string{"p"}, false
		change(&p)
		all, err := catalogue.New([]catalogue.Plugin{p})
		if err != nil {
			panic(err)
		}
		c.PluginDirs, c.Catalogue = []string{dir}, all
	}
}

// otherMachine returns the beginning of a program that is changed to be for S/390.
func otherMachine(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const machine, s390 = 18, 22
	b[machine], b[machine+1] = s390, 0
	return b
}

// TestPrograms says of each program whether it is there and can be executed, under the index that it has in the configuration.
func TestPrograms(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var plugins []catalogue.Plugin
	add := func(program, interpreter string, autostart bool) {
		var p catalogue.Plugin
		p.SetDefaults()
		p.Name = fmt.Sprint("p", 9-len(plugins)) // not in the order of the list
		p.Command, p.Interpreter, p.Autostart = []string{program}, interpreter, autostart
		plugins = append(plugins, p)
	}
	add(self, "", true)
	add(self+".none", "", true)
	add(self+".none", "", false)
	add(plain, "", true)
	add(self, plain+".none", true)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	add(script, "", true)
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := os.WriteFile(foreign, otherMachine(t, self), 0o700); err != nil {
		t.Fatal(err)
	}
	add(foreign, "", true)
	all, err := catalogue.New(plugins)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	c := &config.Loaded{Config: config.Config{PluginDirs: []string{"/p"}, State: "/s", ControlSocket: "/c"}, Catalogue: all}
	for _, err := range joined(CheckPlugins(c)) {
		field, _ := errors.AsType[*config.FieldError](err)
		why, _, _ := strings.Cut(field.Error(), " cannot be run on this machine: ")
		found = append(found, field.Field+" "+why)
	}
	want := []string{
		fmt.Sprintf("plugins[6].command program %q", foreign), fmt.Sprintf("plugins[5].command program %q", script),
		fmt.Sprintf("plugins[4].interpreter program %q", plain+".none"), fmt.Sprintf("plugins[3].command program %q", plain),
		fmt.Sprintf("plugins[1].command program %q", self+".none"),
	}
	if got, want := strings.Join(found, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestCheckDispenseDir(t *testing.T) {
	plugins := config.Config{PluginDirs: []string{"/run/plugins"}, DeprecatedPluginDir: "/var/old"}
	for dir, want := range map[string]string{
		"":                 "",
		"/run/dispense":    "",
		"/run/plugins-too": "",
		"/run/plugins/d":   "overlap",
		"/var/old":         "overlap",
		"/run":             "overlap",
		"/" + strings.Repeat("x", stablesocket.MaxDir-1): "",
		"/" + strings.Repeat("x", stablesocket.MaxDir):   "the paths of sockets leave room for",
	} {
		c := plugins
		c.DispenseDir = dir
		err := checkDispenseDir(&c)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", dir, err, want)
		}
	}
}

// TestPathsBecomeAbsolute: what a daemon works with does not follow the working directory, and a reload knows it again.
func TestPathsBecomeAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	cfg := Options{Loaded: config.Loaded{Config: config.Config{
		PluginDirs: []string{"p", "/q"}, DeprecatedPluginDir: "old", State: "s", ControlSocket: "c", DispenseDir: "d",
	}}}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{dir + "/p", "/q", dir + "/old", dir + "/s", dir + "/c", dir + "/d", ""}
	got := slices.Concat(d.options.PluginDirs, []string{d.options.DeprecatedPluginDir, d.options.State, d.options.ControlSocket,
		d.options.DispenseDir, d.options.Device.SocketDir})
	if diff := cmp.Diff(want, got); diff != "" || cfg.PluginDirs[0] != "p" {
		t.Errorf("(-want +got, and the caller's is %q):\n%s", cfg.PluginDirs[0], diff)
	}
	if err := makeAbsolute(&cfg.Loaded); err != nil {
		t.Fatal(err)
	}
	if changed, restart := differences(&d.options.Loaded, &cfg.Loaded); len(changed)+len(restart) > 0 {
		t.Errorf("the same configuration differs in %q and %q", changed, restart)
	}
}
