package daemon

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// TestFleetMetrics: what the node does for the fleet is counted, also by readers that are closed, and how well it follows it is told while
// somebody asks.
func TestFleetMetrics(t *testing.T) {
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := fleet.NewPublisher(cluster, fleet.PublisherConfig{Node: "a", Local: fleetLocal{}})
	if err != nil {
		t.Fatal(err)
	}
	lookup := fleet.OpenLookup(cluster, fleet.LookupConfig{})
	defer lookup.Close()
	member := &fleetMember{
		lookup:  lookup,
		cluster: cluster, log: slog.New(slog.DiscardHandler),
	}
	m := newTestMetrics(t)
	m.watchFleet(nil, nil) // the node of no fleet has none
	m.watchFleet(member, publisher)
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
	_, release, err := member.acquire()
	if err != nil {
		t.Fatal(err)
	}
	defer member.reader.Close()
	is(following)
	release()
	member.idle.Stop()
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
		peers.ended("a", err)
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
