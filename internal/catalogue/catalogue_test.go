package catalogue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/plugin"
)

// named returns a plugin with only the required fields.
func named(name string) Plugin {
	var p Plugin
	p.SetDefaults()
	p.Name, p.Command = name, []string{"/bin/" + name}
	return p
}

func mustNew(t interface {
	Helper()
	Fatal(...any)
}, plugins ...Plugin) *Catalogue {
	t.Helper()
	c, err := New(plugins)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLookupAndList(t *testing.T) {
	c := mustNew(t, named("b"), named("c"), named("a"))
	var names []string
	for _, p := range c.List() {
		names = append(names, p.Name)
		if found, ok := c.Lookup(p.Name); !ok || !cmp.Equal(found, p) {
			t.Errorf("Lookup(%q) = %v, %t", p.Name, found, ok)
		}
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("List has %v", names)
	}
	if _, ok := c.Lookup("d"); ok {
		t.Error("found a plugin that is not there")
	}
	var none *Catalogue
	if _, ok := none.Lookup("a"); ok || len(none.List()) > 0 {
		t.Error("a nil catalogue has plugins")
	}
}

func TestImmutable(t *testing.T) {
	p := named("a")
	p.Env, p.Metadata = map[string]string{"K": "v"}, map[string]string{"k": "v"}
	p.SHA256 = strings.Repeat("Ab", 32)
	goPlugin(func(*Plugin) {})(&p)
	c := mustNew(t, p)
	spoil := func(p Plugin) {
		p.Command[0], p.Env["K"], p.Metadata["k"] = "x", "x", "x"
		p.GoPlugin.ProtocolVersions[0] = 9
	}
	spoil(p)
	got, _ := c.Lookup("a")
	spoil(got)
	spoil(c.List()[0])
	spoil(Diff(nil, c).Added[0])
	want := named("a")
	want.Env, want.Metadata = map[string]string{"K": "v"}, map[string]string{"k": "v"}
	want.SHA256 = strings.Repeat("ab", 32)
	goPlugin(func(*Plugin) {})(&want)
	if got, _ = c.Lookup("a"); !cmp.Equal(want, got) {
		t.Errorf("-want +got:\n%s", cmp.Diff(want, got))
	}
}

// goPlugin makes a plugin one of go-plugin before it is changed.
func goPlugin(change func(*Plugin)) func(*Plugin) {
	return func(p *Plugin) {
		p.Protocol, p.Type = ProtocolGoPlugin, "T"
		p.GoPlugin = GoPlugin{CookieKey: "K", CookieValue: "v", ProtocolVersions: []int{1}, AutoMTLS: true}
		change(p)
	}
}

func TestRefused(t *testing.T) {
	for want, change := range map[string]func(*Plugin){
		`name: "" is not a valid name of a plugin`:                                func(p *Plugin) { p.Name = "" },
		`name: "../a" is not a valid name of a plugin`:                            func(p *Plugin) { p.Name = "../a" },
		`name: ".a" is not a valid name of a plugin`:                              func(p *Plugin) { p.Name = ".a" },
		`name: "a/b" is not a valid name of a plugin`:                             func(p *Plugin) { p.Name = "a/b" },
		`name: "a\n" is not a valid name of a plugin`:                             func(p *Plugin) { p.Name = "a\n" },
		`name: "` + strings.Repeat("a", 64) + `" is not a valid name of a plugin`: func(p *Plugin) { p.Name = strings.Repeat("a", 64) },
		`version: "\x1b" must have printable characters only`:                     func(p *Plugin) { p.Version = "\x1b" },
		`command: it names no program`:                                            func(p *Plugin) { p.Command = nil },
		`command: it names no program `:                                           func(p *Plugin) { p.Command = []string{""} },
		`command: "bin/a" must be an absolute path`:                               func(p *Plugin) { p.Command[0] = "bin/a" },
		`command: the argument "\x00" has a NUL character`:                        func(p *Plugin) { p.Command = append(p.Command, "\x00") },
		`sha256: "abc" is not a SHA-256 digest`:                                   func(p *Plugin) { p.SHA256 = "abc" },
		`metadata: the key "" must have`:                                          func(p *Plugin) { p.Metadata = map[string]string{"": ""} },
		`env: "A=B" is not a variable name`:                                       func(p *Plugin) { p.Env = map[string]string{"A=B": ""} },
		`env.A: the value has a NUL character`:                                    func(p *Plugin) { p.Env = map[string]string{"A": "\x00"} },
		`dir: "srv" must be an absolute path`:                                     func(p *Plugin) { p.Dir = "srv" },
		`protocol: "http" must be one of patchbay, go-plugin`:                     func(p *Plugin) { p.Protocol = "http" },
		`type: it is for protocol: go-plugin only`:                                func(p *Plugin) { p.Type = "T" },
		`goPlugin: it is for protocol: go-plugin only`:                            func(p *Plugin) { p.GoPlugin.CookieKey = "K" },
		`type: "" is not a plugin type`:                                           goPlugin(func(p *Plugin) { p.Type = "" }),
		`type: "a/b" is not a plugin type`:                                        goPlugin(func(p *Plugin) { p.Type = "a/b" }),
		`goPlugin.cookieKey: "A=B" is not a variable name`:                        goPlugin(func(p *Plugin) { p.GoPlugin.CookieKey = "A=B" }),
		`goPlugin.cookieValue: it must not be empty`:                              goPlugin(func(p *Plugin) { p.GoPlugin.CookieValue = "" }),
		`goPlugin.protocolVersions: it must name at least one`:                    goPlugin(func(p *Plugin) { p.GoPlugin.ProtocolVersions = nil }),
		`goPlugin.protocolVersions: 0 must be above zero`:                         goPlugin(func(p *Plugin) { p.GoPlugin.ProtocolVersions = []int{1, 0} }),
		`goPlugin.plugin: "\x1b" must have printable characters only`:             goPlugin(func(p *Plugin) { p.GoPlugin.Plugin = "\x1b" }),
		`serve: a plugin of go-plugin always serves`:                              goPlugin(func(p *Plugin) { p.Serve = false }),
		`survive: a plugin of go-plugin cannot`:                                   goPlugin(func(p *Plugin) { p.Survive = true }),
		`limits.memory: it must be above zero`:                                    func(p *Plugin) { p.Limits.Memory = -1 },
		`limits.cpu: it must be above zero`:                                       func(p *Plugin) { p.Limits.CPU = -1 },
		`limits.openFiles: it must be above zero`:                                 func(p *Plugin) { p.Limits.OpenFiles = -1 },
		`user: "a\n" must have printable characters only`:                         func(p *Plugin) { p.User = "a\n" },
		`group: "\xff" must have printable characters only`:                       func(p *Plugin) { p.Group = "\xff" },
		`restart.policy: "maybe" must be one of on-failure, always`:               func(p *Plugin) { p.Restart.Policy = "maybe" },
		`restart.backoff.min: it must be above zero`:                              func(p *Plugin) { p.Restart.Backoff.Min = 0 },
		`restart.backoff.max: 1s must not be shorter than min`:                    func(p *Plugin) { p.Restart.Backoff = plugin.Backoff{Min: 2 * time.Second, Max: time.Second} },
		`health.interval: it must not be shorter than 10ms`:                       func(p *Plugin) { p.Health.Interval = 1 },
		`health.timeout: it must not be shorter than 10ms`:                        func(p *Plugin) { p.Health.Timeout = 0 },
		`health.misses: it must be above zero`:                                    func(p *Plugin) { p.Health.Misses = 0 },
		`restart.limit: it must be above zero`:                                    func(p *Plugin) { p.Restart.Limit = 0 },
		`restart.window: it must be above zero`:                                   func(p *Plugin) { p.Restart.Window = 0 },
		`startTimeout: it must be above zero`:                                     func(p *Plugin) { p.StartTimeout = 0 },
		`stopTimeout: it must be above zero`:                                      func(p *Plugin) { p.StopTimeout = 0 },
		`logRate: it must be above zero`:                                          func(p *Plugin) { p.LogRate = -1 },
	} {
		p := named("a")
		change(&p)
		c, err := New([]Plugin{named("first"), p})
		if c != nil || err == nil || !strings.HasPrefix(err.Error(), "plugins[1]."+strings.TrimSpace(want)) || strings.Contains(err.Error(), "\nplugins") {
			t.Errorf("got %v, %v, want only %q", c, err, want)
		}
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	bad := named("a")
	bad.SHA256, bad.Dir = "x", "x"
	_, err := New([]Plugin{named("a"), bad, named("a")})
	var fields []string
	joined, _ := err.(interface{ Unwrap() []error })
	for _, err := range joined.Unwrap() {
		field, ok := errors.AsType[*FieldError](err)
		if !ok {
			t.Fatalf("%v is no FieldError", err)
		}
		fields = append(fields, fmt.Sprintf("%d %s %s", field.Index, field.Name, field.Field))
	}
	if want := []string{"1 a sha256", "1 a dir", "1 a name", "2 a name"}; !slices.Equal(fields, want) {
		t.Errorf("got %q, want %q", fields, want)
	}
}

// TestDiff changes one catalogue into another by what Diff says.
func TestDiff(t *testing.T) {
	anyCatalogue := rapid.Custom(func(t *rapid.T) *Catalogue {
		var plugins []Plugin
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.ID[string]).Draw(t, "names") {
			p := named(name)
			p.Env = rapid.MapOf(rapid.SampledFrom([]string{"A", "B"}), rapid.SampledFrom([]string{"1", "2"})).Draw(t, "env")
			p.Survive = rapid.Bool().Draw(t, "survive")
			plugins = append(plugins, p)
		}
		return mustNew(t, plugins...)
	})
	rapid.Check(t, func(t *rapid.T) {
		before, after := anyCatalogue.Draw(t, "before"), anyCatalogue.Draw(t, "after")
		changes := Diff(before, after)
		byName := map[string]Plugin{}
		for _, p := range before.List() {
			byName[p.Name] = p
		}
		for _, p := range changes.Removed {
			if !cmp.Equal(byName[p.Name], p) {
				t.Fatalf("%s was not as it is said to have been", p.Name)
			}
			delete(byName, p.Name)
		}
		for _, p := range changes.Changed {
			if was, known := byName[p.Name]; !known || cmp.Equal(was, p) {
				t.Fatalf("%s has not changed", p.Name)
			}
			byName[p.Name] = p
		}
		for _, p := range changes.Added {
			if _, known := byName[p.Name]; known {
				t.Fatalf("%s is not new", p.Name)
			}
			byName[p.Name] = p
		}
		var list []Plugin
		for _, p := range byName {
			list = append(list, p)
		}
		if !cmp.Equal(mustNew(t, list...).List(), after.List()) {
			t.Fatalf("%v applied to %v is not %v", changes, before, after)
		}
		if none := cmp.Equal(changes, Changes{}); none != cmp.Equal(before.List(), after.List()) {
			t.Fatalf("%v applied to %v has changes: %v", changes, before, !none)
		}
	})
}

func TestQuantities(t *testing.T) {
	for text, want := range map[string]Bytes{
		"1": 1, "1000000": 1e6, "1k": 1000, "2M": 2e6, "1.5G": 1.5e9, "512Mi": 512 << 20, "1Ki": 1024, "0.5Ki": 512, "1T": 1e12, "3Pi": 3 << 50, "2P": 2e15,
		"1.0001k": 1001, "0.1": 1, "7Gi": 7 << 30, "1Ti": 1 << 40,
		"": 0, "0": 0, "0Mi": 0, "-1": 0, "+1": 0, "1K": 0, "1m": 0, "1ki": 0, "1 Mi": 0, "1e3": 0, ".5": 0, "1.": 0, "0x10": 0, "9223372036854775807": 0,
		"8192Pi": 0, "999999999999999999P": 0, "1Mi\n": 0, "１": 0,
	} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); (err == nil) != (want > 0) || got != want {
			t.Errorf("memory %q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]CPU{
		"1": 1000, "0.5": 500, "500m": 500, "1500m": 1500, "2.125": 2125, "16": 16000,
		"": 0, "0": 0, "0m": 0, "-1": 0, "1.5m": 0, "0.0001": 0, "1k": 0, "m": 0, "1e3": 0, "999999999999999999m": 999999999999999999,
	} {
		var got CPU
		if err := got.UnmarshalText([]byte(text)); (err == nil) != (want > 0) || got != want {
			t.Errorf("CPU %q: got %d, %v, want %d", text, got, err, want)
		}
	}
}

func FuzzQuantities(f *testing.F) {
	for _, text := range []string{"1", "1.5Gi", "500m", "0.000000000000000001P", "999999999999999999", "2k"} {
		f.Add(text)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text string) {
		var b, b2 Bytes
		if b.UnmarshalText([]byte(text)) == nil {
			again, _ := b.MarshalText()
			if err := b2.UnmarshalText(again); err != nil || b2 != b || b <= 0 {
				t.Errorf("%q is %d, written %s, read %d, %v", text, b, again, b2, err)
			}
		}
		var c, c2 CPU
		if c.UnmarshalText([]byte(text)) == nil {
			again, _ := c.MarshalText()
			if err := c2.UnmarshalText(again); err != nil || c2 != c || c <= 0 {
				t.Errorf("%q is %d, written %s, read %d, %v", text, c, again, c2, err)
			}
		}
	})
}

// TestNil checks that the nil catalogue is one without plugins, for every method.
func TestNil(t *testing.T) {
	var none *Catalogue
	if _, found := none.Lookup("a"); found || none.Index("a") != 0 || none.List() != nil {
		t.Error("the nil catalogue has a plugin")
	}
	if c := Diff(none, none); len(c.Added)+len(c.Removed)+len(c.Changed) > 0 {
		t.Errorf("the nil catalogue differs from itself: %v", c)
	}
}

func TestUsable(t *testing.T) {
	var plugins []Plugin
	for _, name := range []string{"a", "b", "a", "c"} {
		var p Plugin
		p.SetDefaults()
		p.Name, p.Command = name, []string{"/bin/" + name}
		plugins = append(plugins, p)
	}
	plugins[1].Command = nil
	c, err := Usable(plugins)
	if err == nil || !strings.Contains(err.Error(), "plugins[1].command") || !strings.Contains(err.Error(), "plugins[2].name") {
		t.Errorf("got %v", err)
	}
	if list := c.List(); len(list) != 2 || list[0].Name != "a" || list[1].Name != "c" || c.Index("c") != 3 {
		t.Errorf("usable are %v", list)
	}
}

// TestRefuses checks that New refuses what cannot be a plugin, and names the plugin and the field; the nil Catalogue works.
func TestRefuses(t *testing.T) {
	for name, change := range map[string]func(*Plugin){
		"name":    func(p *Plugin) { p.Name = "a/b" },
		"command": func(p *Plugin) { p.Command = nil },
		"start":   func(p *Plugin) { p.Start = "x" },
		"upgrade": func(p *Plugin) { p.Upgrade = "x" },
		"sha256":  func(p *Plugin) { p.SHA256 = strings.Repeat("g", 64) },
	} {
		p := Plugin{Name: "a", Command: []string{"/bin/true"}}
		p.SetDefaults()
		change(&p)
		c, err := New([]Plugin{p})
		if wrong, ok := errors.AsType[*FieldError](err); !ok || c != nil || !strings.HasPrefix(wrong.Field, name) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		if c, err := Usable([]Plugin{p}); err == nil || len(c.List()) > 0 {
			t.Errorf("%s is usable", name)
		}
	}
	var none *Catalogue
	if _, found := none.Lookup(""); found || len(none.List())+none.Index("") > 0 || len(Diff(none, none).Added) > 0 {
		t.Error("the nil Catalogue has plugins")
	}
	for _, text := range []string{"", "-1", "1x", strings.Repeat("9", 40), "1\x00"} {
		if new(Bytes).UnmarshalText([]byte(text)) == nil || new(CPU).UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is a quantity", text)
		}
	}
}
