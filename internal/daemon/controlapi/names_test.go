package controlapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
	"github.com/patchbay-dev/patchbay/plugin"
)

// drivers are a CSI driver with both roles, a driver without the role of a node, a driver that was never registered, and one that was
// refused and has exited. Requests by the announced name are recorded.
type drivers struct {
	recorded
	asked []string
}

func (d *drivers) Retry(ptype, name string) error {
	d.asked = append(d.asked, "retry "+ptype+"/"+name)
	return nil
}

func (d *drivers) ReleaseName(_ context.Context, ptype, name string) error {
	d.asked = append(d.asked, "release "+ptype+"/"+name)
	return nil
}

func newDrivers() *drivers {
	driver := func(name string, state plugin.State, roles ...string) plugin.Status {
		s := plugin.Status{Type: "CSIPlugin", Name: name, State: state, Registration: plugin.Registration{Roles: roles}}
		if roles != nil {
			s.Instance = name
		}
		return s
	}
	live := make(chan plugin.Event)
	close(live)
	d := &drivers{recorded: recorded{
		plugins: []plugin.Status{
			driver("both", plugin.StateRegistered, "csi-controller", "csi-node"),
			driver("controller", plugin.StateRegistered, "csi-controller"), driver("new", plugin.StateBackoff),
			{Type: "Other", Name: "both", State: plugin.StateRegistered},
		},
		refusals: []plugin.Status{driver("gone", plugin.StateRefused)},
		live:     live,
	}}
	for i, name := range []string{"both", "controller", "new", "gone"} {
		e := event(uint64(i+1), "CSIPlugin")
		e.Name = name
		d.past = append(d.past, e)
	}
	return d
}

func (d *drivers) control() service { return d.controlOf(d, noneLaunched{}) }

func (d *drivers) controlOf(s Runtime, l Launcher) service {
	return testControl(s, l, handlersOf{"CSIPlugin": csi.NewHandler(csi.Options{}), "Other": patchbay.AcceptHandler()}, d.isRegistered)
}

func (d *drivers) isRegistered(ptype, name string) bool {
	return slices.ContainsFunc(d.plugins, func(s plugin.Status) bool {
		return s.Name == name && s.Instance != "" && (s.Type == ptype || slices.Contains(s.Registration.Roles, ptype))
	})
}

// TestRolesName checks that a plugin has its roles as names wherever its type is a name.
func TestRolesName(t *testing.T) {
	d := newDrivers()
	mux := http.NewServeMux()
	mux.Handle(patchbayv1connect.NewControlServiceHandler(d.control()))
	mux.Handle("/", page.New(d.control()))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	rpc, ctx := patchbayv1connect.NewControlServiceClient(server.Client(), server.URL), t.Context()

	for name, want := range map[string]string{"both": "CSIPlugin/both", "new": "CSIPlugin/new", "gone": "CSIPlugin/gone", "controller": ""} {
		got := ""
		answer, err := rpc.GetPlugin(ctx, &patchbayv1.GetPluginRequest{Type: "csi-node", Name: name})
		if err == nil && len(answer.GetPlugins()) == 1 {
			got = answer.GetPlugins()[0].GetType() + "/" + answer.GetPlugins()[0].GetName()
		}
		if got != want {
			t.Errorf("csi-node/%s is %q (%v), want %q", name, got, err, want)
		}
		_, retried := rpc.RetryPlugin(ctx, &patchbayv1.RetryPluginRequest{Type: "csi-node", Name: name})
		_, released := rpc.ReleaseName(ctx, &patchbayv1.ReleaseNameRequest{Type: "csi-node", Name: name})
		if err := errors.Join(retried, released); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{"retry CSIPlugin/both", "release CSIPlugin/both", "retry CSIPlugin/new", "release CSIPlugin/gone", "retry csi-node/controller"} {
		if !slices.Contains(d.asked, want) {
			t.Errorf("asked was %v, not %s", d.asked, want)
		}
	}

	listed, err := rpc.ListPlugins(ctx, &patchbayv1.ListPluginsRequest{Types: []string{"csi-node"}})
	if err != nil || !slices.Equal(each(listed.GetPlugins(), (*patchbayv1.Plugin).GetName), []string{"both", "new"}) {
		t.Errorf("with the role csi-node are %v, %v", listed, err)
	}
	events, err := rpc.WatchEvents(ctx, &patchbayv1.WatchEventsRequest{Types: []string{"csi-node"}})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for events.Receive() {
		told = append(told, events.Msg().GetEvent().GetName())
	}
	if !slices.Equal(told, []string{"both", "new", "gone"}) {
		t.Errorf("events of csi-node are of %v", told)
	}
	wait := &patchbayv1.WaitForPluginRequest{Type: "csi-node", Name: "both", For: patchbayv1.WaitFor_WAIT_FOR_REGISTERED}
	if _, err := rpc.WaitForPlugin(ctx, wait); err != nil {
		t.Error(err)
	}
	wait.Name = "controller"
	if _, err := rpc.WaitForPlugin(ctx, wait); err == nil {
		t.Error("csi-node/controller is registered")
	}
}

// onceLaunched is a catalogue with one plugin, which is or was registered as CSIPlugin/both and has no socket now.
type onceLaunched struct{ noneLaunched }

func (onceLaunched) Plugins() []plugin.LaunchStatus {
	return []plugin.LaunchStatus{{Name: "disk", State: plugin.StateStopped}}
}

func (onceLaunched) Start(string) error { return nil }

// disk has CSIPlugin/both as the registered name of the launched plugin disk.
type disk struct{ *drivers }

func (disk) LaunchedAs(name string) (plugin.Name, bool) {
	return plugin.Name{Type: "CSIPlugin", Name: "both"}, name == "disk"
}

// TestLaunchedPluginHasTwoNames checks that each name selects all events of the plugin, and the plugin to launch even if it is not
// registered.
func TestLaunchedPluginHasTwoNames(t *testing.T) {
	d := newDrivers()
	d.plugins = nil
	launched := event(5, "")
	launched.Name = "disk"
	d.past = append(d.past, launched)
	c := d.controlOf(disk{d}, onceLaunched{})
	mux := http.NewServeMux()
	mux.Handle(patchbayv1connect.NewControlServiceHandler(c))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	rpc, ctx := patchbayv1connect.NewControlServiceClient(server.Client(), server.URL), t.Context()
	for _, asked := range []*patchbayv1.WatchEventsRequest{
		{Names: []string{"disk"}}, {Names: []string{"both"}}, {Types: []string{"CSIPlugin"}, Names: []string{"both"}},
		{Types: []string{"csi-node"}, Names: []string{"both"}},
	} {
		events, err := rpc.WatchEvents(ctx, asked)
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for events.Receive() {
			told = append(told, events.Msg().GetEvent().GetName())
		}
		if !slices.Equal(told, []string{"both", "disk"}) {
			t.Errorf("%v: events are of %v", asked, told)
		}
	}
	for _, of := range [][2]string{{"CSIPlugin", "both"}, {"csi-node", "both"}, {"", "disk"}} {
		if n := len(c.EventsOf(of[0], of[1])); n != 2 {
			t.Errorf("the page of %v has %d events", of, n)
		}
	}
	for _, name := range []string{"disk", "CSIPlugin/both", "csi-node/both"} {
		if _, err := rpc.LaunchPlugin(ctx, &patchbayv1.LaunchPluginRequest{Name: name}); err != nil {
			t.Errorf("launch %s: %v", name, err)
		}
	}
	_, err := rpc.GetPlugin(ctx, &patchbayv1.GetPluginRequest{Type: "CSIPlugin", Name: "both"})
	if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), `it is launched as disk, which is stopped; "patchbay status disk"`) {
		t.Error(err)
	}
}

// TestRefusalOfRole checks that the errors for reserved and unknown names are the same for a role.
func TestRefusalOfRole(t *testing.T) {
	d := newDrivers()
	mux := http.NewServeMux()
	mux.Handle(patchbayv1connect.NewControlServiceHandler(d.control()))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	rpc := patchbayv1connect.NewControlServiceClient(server.Client(), server.URL)
	_, err := rpc.GetPlugin(t.Context(), &patchbayv1.GetPluginRequest{Type: "csi-node", Name: "kept"})
	if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "the name is reserved for user 60001") {
		t.Error(err)
	}
	_, err = rpc.GetPlugin(t.Context(), &patchbayv1.GetPluginRequest{Type: "CSIPlugin", Name: "gon"})
	if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), `did you mean "CSIPlugin/gone"?`) {
		t.Error(err)
	}
}

// TestPageGoesByRoles checks that the page of a plugin has its events under each of its names.
func TestPageGoesByRoles(t *testing.T) {
	server := httptest.NewServer(page.New(newDrivers().control()))
	t.Cleanup(server.Close)
	for _, ptype := range []string{"CSIPlugin", "csi-node", "csi-controller"} {
		answer, err := server.Client().Get(server.URL + "/api/events?name=both&type=" + ptype)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || strings.Count(string(text), `"seq"`) != 1 {
			t.Errorf("events of %s/both: %s, %v", ptype, text, err)
		}
	}
}
