package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/plugin"
)

type someLaunched struct {
	launched
	plugins []plugin.LaunchStatus
}

func (l someLaunched) Plugins() []plugin.LaunchStatus { return l.plugins }

// TestLastSeenBetween: what the API says of a plugin whose node was last alive between two times has both.
func TestLastSeenBetween(t *testing.T) {
	last, before := time.Unix(100, 0), time.Unix(200, 0)
	m := fleetPluginMessage(fleet.Plugin{NodeState: fleet.NodeUnreachable, LastSeen: last, SeenBefore: before})
	if !m.GetLastSeen().AsTime().Equal(last) || !m.GetLastSeenBefore().AsTime().Equal(before) ||
		!strings.Contains(m.GetReason(), "at 1970-01-01T00:01:40Z or later, but before 1970-01-01T00:03:20Z") {
		t.Error(m)
	}
}

// TestUnwell: a launched plugin that says that it does not serve, or does not answer, is known by its socket, and by its roles.
func TestUnwell(t *testing.T) {
	l := someLaunched{plugins: []plugin.LaunchStatus{
		{Socket: "/well", Health: "serving"}, {Socket: "/sick", Health: "not-serving"}, {Socket: "/silent", Health: "unresponsive"},
		{Socket: "/none", Health: "not-offered"}, {Health: "not-serving"},
	}}
	if got := (launchedHealth{launched: l}).UnhealthySockets(); len(got) != 2 || !got["/sick"] || !got["/silent"] {
		t.Errorf("got %v", got)
	}
	sick := plugin.Status{Type: "T", Name: "sick", SocketPath: "/sick", Current: true}
	sick.Registration.Roles = []string{"role"}
	old := plugin.Status{Type: "T", Name: "well", SocketPath: "/silent"} // superseded
	plugins := &recorded{plugins: []plugin.Status{sick, old, {Type: "T", Name: "well", SocketPath: "/well", Current: true}}}
	for _, test := range []struct {
		ptype, name string
		want        bool
	}{{"T", "sick", true}, {"role", "sick", true}, {"other", "sick", false}, {"T", "well", false}, {"T", "none", false}} {
		if got := (launchedHealth{l, plugins}).IsUnhealthy(test.ptype, test.name); got != test.want {
			t.Errorf("%s/%s: %t", test.ptype, test.name, got)
		}
	}
}
