package telemetry

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
)

// TestFleetMetrics: what the node does for the fleet is counted, also by readers that are closed, and how well it follows it is told while
// somebody asks.
func TestFleetMetrics(t *testing.T) {
	registry, err := dynamicplugins.Open(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Shutdown()
	m := newTestMetrics(t)
	member := &node.Node{
		Fleet: config.Fleet{Node: "a", Etcd: config.Etcd{Endpoints: []string{"http://127.0.0.1:1"}}}, State: filepath.Join(t.TempDir(), "state"),
		Registry: registry, Health: healthy{}, Called: m.Called, Served: m.Served, Log: slog.New(slog.DiscardHandler),
	}
	if err = member.Init(); err == nil {
		err = member.Publish(nil, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = member.Close() }()
	m.WatchNode(nil) // the node of no fleet has none
	m.WatchNode(member)
	const following = `
# HELP patchbay_fleet_reader_current Whether the daemon follows the fleet in etcd: 1 if so, 0 if it has lost it; absent while nobody asks for the fleet.
# TYPE patchbay_fleet_reader_current gauge
patchbay_fleet_reader_current 0
`
	is := func(want string) {
		t.Helper()
		if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "patchbay_fleet_reader_current"); err != nil {
			t.Error(err)
		}
	}
	is("")
	member.Reader.Use()
	is(following)
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestCodesAreFew: plugins choose the codes of their answers, but not how many labels there are.
func TestCodesAreFew(t *testing.T) {
	m := newTestMetrics(t)
	peers := newPeerCalls(prometheus.NewCounterVec(prometheus.CounterOpts{Name: "calls"}, []string{"peer", "code"}))
	methods := &rpcMetrics{calls: m.rpcs.calls, durations: m.rpcs.durations, methods: &labels{most: maxMethods}}
	for code := range codes.Code(1000) {
		err := status.Error(code, "")
		peers.Ended("a", err)
		methods.HandleRPC(t.Context(), &stats.End{Error: err})
	}
	const known = 17
	for _, counted := range []*prometheus.CounterVec{peers.calls, methods.calls} {
		if got := testutil.CollectAndCount(counted); got > 2*(known+1) { // two methods, one of them for Unimplemented
			t.Errorf("%d codes have labels", got)
		}
	}
	if got := testutil.ToFloat64(peers.calls.WithLabelValues("a", labelOther)); got != 1000-known {
		t.Errorf("%v have another code", got)
	}
}

// TestPeerCalls: calls are counted by peer, of a bounded number of peers.
func TestPeerCalls(t *testing.T) {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "calls"}, []string{"peer", "code"})
	p := newPeerCalls(calls)
	for i := range 2 * maxPeers {
		p.Ended(fmt.Sprint("node-", i), nil)
	}
	p.Ended("node-0\xff", status.Error(codes.PermissionDenied, ""))
	p.Ended("node-0", status.Error(codes.PermissionDenied, ""))
	if n := testutil.CollectAndCount(calls); n != maxPeers+3 {
		t.Errorf("%d time series", n)
	}
	if n := testutil.ToFloat64(calls.WithLabelValues(labelOther, "OK")); n != maxPeers {
		t.Errorf("%v calls of others", n)
	}
}

// healthy is the health of a node without launched plugins.
type healthy struct{}

func (healthy) IsUnhealthy(string, string) bool { return false }
