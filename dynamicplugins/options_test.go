package dynamicplugins_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestOptionsAreCopied: what a caller does with its options afterwards changes those of no plugin, whether others have the same or not, and
// plugins with the same ones share them.
func TestOptionsAreCopied(t *testing.T) {
	r := open(t, nil, nil)
	mine := map[string]string{"zone": "a"}
	want := map[string]map[string]string{}
	for _, next := range []struct{ name, zone string }{{"1", "a"}, {"2", "a"}, {"3", "b"}, {"4", "a"}, {"5", ""}, {"6", "a"}} {
		if mine["zone"] = next.zone; next.zone == "" {
			delete(mine, "zone")
		}
		p := newInfo("t", next.name, "1")
		p.Options = mine
		check(t, r.RegisterPlugin(p))
		want[next.name] = maps.Clone(mine)
	}
	mine["zone"] = "changed"
	got := map[string]map[string]string{}
	for _, p := range r.ListPlugins("t") {
		got[p.Name] = p.Options
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("options %v, want %v", got, want)
	}
	if same := func(a, b string) bool {
		return reflect.ValueOf(got[a]).Pointer() == reflect.ValueOf(got[b]).Pointer()
	}; !same("1", "2") || same("1", "4") {
		t.Error("1 and 2 should share their options, and 4 have its own")
	}
}

// TestRefuses checks that Open refuses what cannot work, and that methods refuse what cannot be a plugin: before, in use, and after Shutdown.
func TestRefuses(t *testing.T) {
	plain := func(*dynamicplugins.PluginInfo) (any, error) { return "", nil }
	for name, option := range map[string]dynamicplugins.Option{
		"a nil option":               nil,
		"nil connections":            dynamicplugins.WithConnections(nil),
		"a nil dial option":          dynamicplugins.WithDialOptions(nil),
		"a nil stats handler":        dynamicplugins.WithStatsHandlers(nil),
		"a nil dispenser":            dynamicplugins.WithConnDispenser("T", nil),
		"a dispenser of no type":     dynamicplugins.WithConnDispenser("", func(*dynamicplugins.PluginInfo, grpc.ClientConnInterface) (any, error) { return "", nil }),
		"a negative confirm timeout": dynamicplugins.WithConfirmTimeout(-1),
	} {
		if r, err := dynamicplugins.Open(nil, nil, option); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %v", name, err)
			r.Shutdown()
		}
	}
	for name, ptype := range map[string]string{"no type": "", "a slash": "a/b", "a control character": "a\x1b"} {
		if _, err := dynamicplugins.Open(nil, map[string]dynamicplugins.PluginDispenser{ptype: plain}); err == nil {
			t.Errorf("a dispenser for %s was accepted", name)
		}
	}
	r := open(t, nil, map[string]dynamicplugins.PluginDispenser{"T": plain})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, state := range []string{"in use", "after Shutdown", "after the second"} {
		for call, do := range map[string]func() error{
			"RegisterPlugin":          func() error { return r.RegisterPlugin(nil) },
			"RegisterPlugin of none":  func() error { return r.RegisterPlugin(&dynamicplugins.PluginInfo{}) },
			"DeregisterPlugin":        func() error { return r.DeregisterPlugin("", "", "") },
			"DispensePlugin":          func() error { _, err := r.DispensePlugin("T", ""); return err },
			"PluginForAlloc":          func() error { _, err := r.PluginForAlloc("", "", ""); return err },
			"ConfirmPlugin":           func() error { return r.ConfirmPlugin("", "", "") },
			"MarkUnreachable":         func() error { return r.MarkUnreachable("", "", "", nil) },
			"SaveReservation":         func() error { return r.SaveReservation(plugin.Name{Name: "foo"}) },
			"Conn":                    func() error { _, err := r.Conn(ended, "T", "foo"); return err },
			"WaitForPlugin":           func() error { _, err := r.WaitForPlugin(ended, "T", "foo"); return err },
			"WaitForPlugin of none":   func() error { _, err := r.WaitForPlugin(t.Context(), "", "foo"); return err },
			"WaitForConfirmedPlugin":  func() error { _, err := r.WaitForConfirmedPlugin(ended, "T", "foo"); return err },
			"StagePlugins of nothing": func() error { _, errs := r.StagePlugins([]*dynamicplugins.PluginInfo{nil}); return errs[0] },
		} {
			if err := do(); err == nil {
				t.Errorf("%s, %s: no error", state, call)
			}
		}
		for range r.PluginsUpdatedCh(ended, "") {
		}
		r.Reserve(plugin.Reservation{})
		r.Replacing(ended, "", "", "")
		if plugins, _ := r.Watch(ended, ""); len(plugins)+len(r.ListPlugins(""))+len(r.Instances("", ""))+len(r.RestoredPlugins()) > 0 {
			t.Errorf("%s there are plugins", state)
		}
		r.StubDispenserForType("T", nil)
		r.Shutdown()
	}
}

// TestCallbacks checks that callbacks which panic or end their goroutine fail the calls that need them, and that the store stays usable.
func TestCallbacks(t *testing.T) {
	for name, fail := range map[string]func(){"panics": func() { panic("oops") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "v1")
			for what, option := range map[string]dynamicplugins.Option{
				"the judge": dynamicplugins.WithConnJudge(func(*dynamicplugins.PluginInfo, net.Conn) error { fail(); return nil }),
				"Dial": dynamicplugins.WithConnections(intercepting{func(context.Context, string) (net.Conn, error) {
					fail()
					return nil, errors.New("unreachable")
				}, nil}),
			} {
				r := open(t, nil, nil, option)
				if err := r.RegisterPlugin(s.info("a")); err != nil {
					t.Fatal(err)
				}
				conn, err := r.Conn(t.Context(), s.info("a").Type, s.info("a").Name)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
				cancel()
				if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "did not return") {
					t.Errorf("%s %s: %v", what, name, err)
				}
				r.Shutdown()
			}
		})
	}
}

// TestSocketDecides: a connection that is refused for its user alone is made again with the socket that it leads to.
func TestSocketDecides(t *testing.T) {
	s := serve(t, "v1")
	info, err := sock.Stat(s.info("a").ConnectionInfo.SocketPath)
	if err != nil {
		t.Fatal(err)
	}
	// The server answers NotFound.
	for want, id := range map[codes.Code]plugin.SocketID{codes.NotFound: info.ID, codes.Unavailable: {Device: 1, Inode: 1}} {
		r := open(t, nil, nil, dynamicplugins.WithConnJudge(func(_ *dynamicplugins.PluginInfo, conn net.Conn) error {
			if known, ok := conn.(sock.Conn); ok && known.Socket.ID == id {
				return nil
			}
			return errors.New("another user listens")
		}))
		check(t, r.RegisterPlugin(s.info("a")))
		conn, err := r.Conn(t.Context(), s.info("a").Type, s.info("a").Name)
		check(t, err)
		_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if status.Code(err) != want {
			t.Errorf("want %v, got %v", want, err)
		}
	}
}
