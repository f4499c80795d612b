package daemon

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/launcher"
)

type someLaunched struct {
	launched
	plugins []launcher.Status
}

func (l someLaunched) Plugins() []launcher.Status { return l.plugins }

// TestUnwell: a launched plugin that says that it does not serve, or does not answer, is known by its socket, and by its roles.
func TestUnwell(t *testing.T) {
	l := someLaunched{plugins: []launcher.Status{
		{Socket: "/well", Health: "serving"}, {Socket: "/sick", Health: "not-serving"}, {Socket: "/silent", Health: "unresponsive"},
		{Socket: "/none", Health: "not-offered"}, {Health: "not-serving"},
	}}
	if got := unwell(l); len(got) != 2 || !got["/sick"] || !got["/silent"] {
		t.Errorf("got %v", got)
	}
	sick := patchbay.PluginStatus{Type: "T", Name: "sick", SocketPath: "/sick", Current: true}
	sick.Registration.Roles = []string{"role"}
	old := patchbay.PluginStatus{Type: "T", Name: "well", SocketPath: "/silent"} // superseded
	plugins := func() []patchbay.PluginStatus {
		return []patchbay.PluginStatus{sick, old, {Type: "T", Name: "well", SocketPath: "/well", Current: true}}
	}
	for _, test := range []struct {
		ptype, name string
		want        bool
	}{{"T", "sick", true}, {"role", "sick", true}, {"other", "sick", false}, {"T", "well", false}, {"T", "none", false}} {
		if got := isUnwell(l, plugins, test.ptype, test.name); got != test.want {
			t.Errorf("%s/%s: %t", test.ptype, test.name, got)
		}
	}
}

// TestPeerCalls: calls are counted by peer, of a bounded number of peers.
func TestPeerCalls(t *testing.T) {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "calls"}, []string{"peer", "code"})
	p := newPeerCalls(calls)
	for i := range 2 * maxPeers {
		p.ended(fmt.Sprint("node-", i), nil)
	}
	p.ended("node-0\xff", status.Error(codes.PermissionDenied, ""))
	p.ended("node-0", status.Error(codes.PermissionDenied, ""))
	if n := testutil.CollectAndCount(calls); n != maxPeers+3 {
		t.Errorf("%d time series", n)
	}
	if n := testutil.ToFloat64(calls.WithLabelValues(labelOther, "OK")); n != maxPeers {
		t.Errorf("%v calls of others", n)
	}
}
