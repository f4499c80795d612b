package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

func allow(identity string, types, names, methods []string) config.FleetAllow {
	return config.FleetAllow{Identity: identity, Types: types, Names: names, Methods: methods}
}

func TestAllowed(t *testing.T) {
	rule := config.FleetAllow{
		Identity: "spiffe://example.com/nomad/*", Types: []string{"csi-controller"}, Names: []string{"*.csi.k8s.io"},
		Methods: []string{"csi.v1.Controller/*"},
	}
	with := func(change func(*config.FleetAllow)) config.FleetAllow {
		r := rule
		change(&r)
		return r
	}
	const method = "csi.v1.Controller/CreateVolume"
	for _, test := range []struct {
		rule                config.FleetAllow
		identities          string
		ptype, name, method string
		want                bool
	}{
		{rule, "spiffe://example.com/nomad/server", "csi-controller", "hostpath.csi.k8s.io", method, true},
		{rule, "spiffe://example.com/other/server", "csi-controller", "hostpath.csi.k8s.io", method, false},
		{rule, "spiffe://example.com/nomad/a/b", "csi-controller", "hostpath.csi.k8s.io", method, false},
		{rule, "", "csi-controller", "hostpath.csi.k8s.io", method, false},
		{rule, "spiffe://example.com/nomad/server", "csi-node", "hostpath.csi.k8s.io", method, false},
		{rule, "spiffe://example.com/nomad/server", "csi-controller", "other", method, false},
		{rule, "spiffe://example.com/nomad/server", "csi-controller", "hostpath.csi.k8s.io", "csi.v1.Node/NodeGetInfo", false},
		{with(func(r *config.FleetAllow) { r.Identity = "*" }), "spiffe://x/y", "csi-controller", "a.csi.k8s.io", method, true},
		{with(func(r *config.FleetAllow) { r.Identity = "*.Example.com" }), "node.example.com", "csi-controller", "a.csi.k8s.io", method, true},
		{with(func(r *config.FleetAllow) { r.Identity = "*//*" }), "spiffe://x", "csi-controller", "a.csi.k8s.io", method, false},
		{with(func(r *config.FleetAllow) { r.Identity = "*://*/*" }), "node", "csi-controller", "a.csi.k8s.io", method, false},
		{with(func(r *config.FleetAllow) { r.Names = []string{"*"} }), "spiffe://example.com/nomad/x", "csi-controller", "a/b", method, true},
		{with(func(r *config.FleetAllow) { r.Methods = []string{"*"} }), "spiffe://example.com/nomad/x", "csi-controller", "a.csi.k8s.io", "x/y", true},
		{config.FleetAllow{Identity: "*"}, "node", "csi-controller", "a", method, false},
	} {
		var from identities
		if test.identities != "" {
			from = identities{"someone", test.identities}
		}
		call := access.Call{Plugin: plugin.Name{Type: test.ptype, Name: test.name}, Method: test.method}
		if got := from.denied(call, []config.FleetAllow{test.rule}) == nil; got != test.want {
			t.Errorf("%+v: %s calls %s of %s/%s: %t", test.rule, test.identities, test.method, test.ptype, test.name, got)
		}
	}
	if (identities{"a"}).denied(access.Call{Plugin: plugin.Name{Type: "T", Name: "n"}, Method: method}, nil) == nil {
		t.Error("without rules something is allowed")
	}
}

func TestFleetServeConfig(t *testing.T) {
	all := []string{"*"}
	good := config.FleetServe{Listen: ":7443", CA: "ca", Cert: "crt", Key: "key", Allow: []config.FleetAllow{allow("*", all, all, all)}}
	for want, change := range map[string]func(*config.FleetServe){
		"":                                  func(*config.FleetServe) {},
		"is not HOST:PORT":                  func(s *config.FleetServe) { s.Listen = "7443" },
		"need a certificate":                func(s *config.FleetServe) { s.CA, s.Cert, s.Key = "", "", "" },
		"name the files ca":                 func(s *config.FleetServe) { s.CA = "" },
		"rule 1: methods is empty":          func(s *config.FleetServe) { s.Allow = []config.FleetAllow{allow("*", all, all, nil)} },
		"rule 1: identity is empty":         func(s *config.FleetServe) { s.Allow = []config.FleetAllow{allow("", all, all, all)} },
		`names: "[" is not a valid pattern`: func(s *config.FleetServe) { s.Allow = []config.FleetAllow{allow("*", all, []string{"["}, all)} },
	} {
		s := good
		change(&s)
		var wrong []string
		validateServe(config.Fleet{Serve: s}, func(field string, err error) {
			if err != nil {
				wrong = append(wrong, field+": "+err.Error())
			}
		})
		if text := strings.Join(wrong, "\n"); (want == "") != (text == "") || !strings.Contains(text, want) {
			t.Errorf("got %q, want %q", text, want)
		}
	}
}

// TestOffersNeedNames checks that rules for offers are refused if all nodes have the same name in their certificates.
func TestOffersNeedNames(t *testing.T) {
	for name, refused := range map[string]bool{"": false, "{node}.example.com": false, "fleet.example.com": true} {
		c := config.Fleet{
			Etcd: config.Etcd{Endpoints: []string{"http://127.0.0.1:1"}}, Serve: config.FleetServe{CA: "ca", Cert: "crt", Key: "key", ServerName: name},
			Offers: []config.FleetOffer{{Node: "a", Types: []string{"*"}, Names: []string{"*"}}},
		}
		found := false
		Validate(c, func(field string, err error) { found = found || field == "fleet.offers" && err != nil })
		if found != refused {
			t.Errorf("serverName %q is refused: %t", name, found)
		}
	}
}

func TestPublishedAddress(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	everywhere, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	for _, test := range []struct {
		cfg      config.Fleet
		listener net.Listener
		want     func(string) bool
	}{
		{config.Fleet{Address: "x:1"}, listener, func(s string) bool { return s == "x:1" }},
		{config.Fleet{}, listener, func(s string) bool { return s == listener.Addr().String() }},
		{config.Fleet{}, everywhere, func(s string) bool {
			return !strings.HasPrefix(s, "[::]") && !strings.HasPrefix(s, "0.0.0.0") && s != ""
		}},
		{config.Fleet{}, nil, func(s string) bool { return s == "" }},
	} {
		if got, err := addressOf(test.cfg, test.listener); err != nil || !test.want(got) {
			t.Errorf("%+v: %q, %v", test.cfg, got, err)
		}
	}
}

// TestRulesCanChange checks that calls that are no longer allowed are aborted, and that others continue.
func TestRulesCanChange(t *testing.T) {
	all := []string{"*"}
	rule := func(identity string) config.FleetAllow { return allow(identity, all, all, all) }
	r := access.NewRules([]config.FleetAllow{rule("a"), rule("b")})
	letIn := func(name string, end context.CancelCauseFunc) error {
		_, err := r.Admit(func(rules []config.FleetAllow) error {
			return identities{name}.denied(access.Call{Plugin: plugin.Name{Type: "T", Name: "n"}, Method: "s/m"}, rules)
		}, end)
		return err
	}
	ended := map[string]context.Context{}
	for _, name := range []string{"a", "b"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		ended[name] = ctx
		if err := letIn(name, cancel); err != nil {
			t.Errorf("%s may not call: %v", name, err)
		}
	}
	r.Replace([]config.FleetAllow{rule("b"), rule("c")})
	if cause := context.Cause(ended["a"]); !errors.Is(cause, errWithdrawn) {
		t.Errorf("a's call goes on: %v", cause)
	}
	if err := ended["b"].Err(); err != nil {
		t.Errorf("b's call was ended: %v", err)
	}
	if letIn("a", nil) == nil || letIn("c", nil) != nil {
		t.Error("the new rules are not in force")
	}
}

// TestMayOffer checks that a rule allows an offer if all of its parts match, and that without rules every node may offer all plugins.
func TestMayOffer(t *testing.T) {
	m := &Node{}
	rules := []config.FleetOffer{
		{Node: "storage-*", Types: []string{"csi-controller"}, Names: []string{"*.example.com"}}, {Node: "Any", Types: []string{"*"}, Names: []string{"*"}},
	}
	for _, test := range []struct {
		rules             []config.FleetOffer
		node, ptype, name string
		want              bool
	}{
		{nil, "x", "T", "n", true},
		{rules, "storage-1", "csi-controller", "a.example.com", true},
		{rules, "storage-1", "csi-node", "a.example.com", false},
		{rules, "storage-1", "csi-controller", "other", false},
		{rules, "x", "csi-controller", "a.example.com", false},
		{rules, "any", "T", "n/m", true},
	} {
		m.offers.Store(&test.rules)
		if got := m.mayOffer(test.node, test.ptype, test.name); got != test.want {
			t.Errorf("%s offers %s/%s: %t", test.node, test.ptype, test.name, got)
		}
	}
}

// TestUnlocked checks that the locks for which other nodes compete, and whose types this node does not list, are recorded and degrade the
// condition.
func TestUnlocked(t *testing.T) {
	u := newSettings("a", config.Fleet{Exclusive: []string{"T"}})
	set := func(states ...keys.LockState) {
		u.read = func() ([]keys.LockState, map[string]string) { return states, nil }
		u.look()
	}
	listed, own, other := plugin.Name{Type: "T", Name: "n"}, plugin.Name{Type: "U", Name: "own"}, plugin.Name{Type: "U", Name: "n"}
	set(keys.LockState{Lock: listed, Nodes: []string{"b"}}, keys.LockState{Lock: own, Nodes: []string{"a"}})
	if c := u.condition(); !c.OK {
		t.Errorf("the condition is %+v", c)
	}
	set(keys.LockState{Lock: listed, Nodes: []string{"b"}}, keys.LockState{Lock: other, Nodes: []string{"a", "b", "c"}})
	if u.elsewhere(listed) != "" || u.elsewhere(own) != "" || u.elsewhere(other) != "b" {
		t.Errorf("others compete for %v", u.nodes)
	}
	c := u.condition()
	if c.OK || c.Since.IsZero() || !strings.Contains(c.Message, "locks of U, node b") {
		t.Errorf("the condition is %+v", c)
	}
	set()
	if c := u.condition(); !c.OK {
		t.Errorf("the condition is %+v", c)
	}
}

// TestUnlockedTakesItsTime checks that the locks are not read for every change, but are read after the last one.
func TestUnlockedTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		u, changed, looks := newSettings("a", config.Fleet{}), make(chan struct{}, 1), 0
		var last atomic.Int64
		u.read = func() ([]keys.LockState, map[string]string) {
			looks++
			return []keys.LockState{{Lock: plugin.Name{Type: "T", Name: fmt.Sprint(last.Load())}, Nodes: []string{"b"}}}, nil
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watched{look: u.look, changed: changed, pause: settingsPause}.watch(ctx, func(plugin.Condition) {})
		}()
		const changes = 10_000
		for range changes {
			last.Add(1)
			select {
			case changed <- struct{}{}:
			default:
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * settingsPause)
		if u.elsewhere(plugin.Name{Type: "T", Name: fmt.Sprint(changes)}) != "b" {
			t.Error("the last change is missed")
		}
		cancel()
		<-ended
		if looks > 12 {
			t.Errorf("%d looks in 12 s", looks)
		}
	})
}

// TestSettingsDiffer checks that the condition counts and names the nodes whose settings differ, and has the time since which they do.
func TestSettingsDiffer(t *testing.T) {
	const same, other = `{"exclusive":["a","b"],"presence":"10s"}`, `{"exclusive":[],"presence":"20s"}`
	s := newSettings("a", config.Fleet{Exclusive: []string{"b", "a"}})
	set := func(texts map[string]string) plugin.Condition {
		s.read = func() ([]keys.LockState, map[string]string) { return nil, maps.Clone(texts) }
		s.look()
		return s.condition()
	}
	if got := set(map[string]string{"n": same}); !got.OK {
		t.Errorf("%+v", got)
	}
	got := set(map[string]string{"n": other, "no node/": "x", "m": "\xff"})
	if got.OK || got.Since.IsZero() || !strings.Contains(got.Message, "2 from this one, node m") {
		t.Errorf("%+v", got)
	}
	if now := set(map[string]string{"n": other}); now.OK || !strings.Contains(now.Message, other) || !now.Since.Equal(got.Since) {
		t.Errorf("%+v", now)
	}
	if got := set(nil); !got.OK {
		t.Errorf("%+v", got)
	}
	if s.exclusive = nil; !set(map[string]string{"n": other}).OK {
		t.Error("a node without exclusive plugins compares them")
	}
}

// TestOtherMessages checks which conditions are announced again when their message changes.
func TestOtherMessages(t *testing.T) {
	for texts, want := range map[bool]int{false: 2, true: 3} {
		synctest.Test(t, func(t *testing.T) {
			messages, changed, announced := []string{"", "a", "b", "b", ""}, make(chan struct{}), 0
			w := watched{changed: changed, texts: texts, look: func() (plugin.Condition, time.Duration) {
				now := messages[0]
				messages = messages[1:]
				return plugin.Condition{OK: now == "", Message: now}, 0
			}}
			ctx, cancel := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			watching.Go(func() { w.watch(ctx, func(plugin.Condition) { announced++ }) })
			for synctest.Wait(); len(messages) > 0; synctest.Wait() {
				changed <- struct{}{}
			}
			cancel()
			watching.Wait()
			if announced != want {
				t.Errorf("with messages %t: %d announcements", texts, announced)
			}
		})
	}
}

// TestSettings checks that nodes with equal settings publish the same text.
func TestSettings(t *testing.T) {
	for want, c := range map[string]config.Fleet{
		`{"exclusive":["a","b"],"presence":"10s"}`: {Exclusive: []string{"b", "a", "b"}},
		`{"exclusive":[],"presence":"20s"}`:        {Presence: 20 * time.Second},
	} {
		if got := settingsOf(c); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
