package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// maxPeers bounds how many nodes have a label, for incoming and for outgoing calls.
	maxPeers = 256
	// maxLocks bounds how many locks have metrics, because plugins choose their names.
	maxLocks = 256
)

// PeerCalls counts calls between nodes, by the other node. Nodes beyond maxPeers share a label.
type PeerCalls struct {
	calls *prometheus.CounterVec
	peers *labels
}

func newPeerCalls(calls *prometheus.CounterVec) *PeerCalls {
	return &PeerCalls{calls, &labels{most: maxPeers}}
}

// Ended counts a call that has ended.
func (p *PeerCalls) Ended(peer string, err error) {
	p.calls.WithLabelValues(p.peers.of(untrusted.Valid(peer)), codeLabel(status.Code(err))).Inc()
}

// WatchNode adds the metrics of a node in a fleet. It does nothing if n is nil.
func (m *Metrics) WatchNode(n *node.Node) {
	if n != nil {
		m.registry.MustRegister(fleetCollector{n})
	}
}

var (
	fleetSessions     = fleetDesc("sessions_total", "How often etcd was found and the node published there.")
	fleetFailures     = fleetDesc("failures_total", "Connections to etcd and writes for the fleet that failed.")
	fleetWrites       = fleetDesc("writes_total", "Transactions that wrote to etcd what the node publishes.")
	fleetWrittenBytes = fleetDesc("written_bytes_total", "The size of the values that were written to etcd.")
	fleetLastWrite    = fleetDesc("last_write_timestamp_seconds", "When the node was last written to etcd, in seconds since 1970.")
	fleetCurrent      = fleetDesc("reader_current", "Whether the daemon follows the fleet in etcd: 1 if so, 0 if it has lost it; absent "+
		"while nobody asks for the fleet.")
	fleetLookupCurrent = fleetDesc("lookup_current", "Whether the daemon follows what is called in the fleet in etcd: 1 if so or if there is "+
		"nothing to follow, 0 if it has lost etcd.")
	fleetExpiry = fleetDesc("certificate_expiry_timestamp_seconds", "When a certificate of the node expires, in seconds since 1970: the one "+
		"for calls between nodes, and the one for etcd.", "for")
	fleetLockHeld = fleetDesc("lock_held", "Whether the node holds a lock that it wants: 1 if so, else 0. Only the first 256 locks are told, "+
		"in the order of their types and names.", "type", "name")
	fleetLockCalls = fleetDesc("lock_calls", "Calls in progress under a lock that the node holds.", "type", "name")
)

func fleetDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("patchbay_fleet_"+name, help, labels, nil)
}

// fleetCollector collects the metrics of the fleet. It is a [prometheus.Collector].
type fleetCollector struct {
	node *node.Node
}

func (c fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		fleetSessions, fleetFailures, fleetWrites, fleetWrittenBytes, fleetLastWrite, fleetCurrent, fleetLookupCurrent, fleetExpiry,
		fleetLockHeld, fleetLockCalls,
	} {
		ch <- d
	}
}

func (c fleetCollector) Collect(ch chan<- prometheus.Metric) {
	wrote := c.node.Publisher.Stats()
	counter(ch, fleetSessions, wrote.Sessions)
	counter(ch, fleetFailures, wrote.Failures)
	counter(ch, fleetWrites, wrote.Writes)
	counter(ch, fleetWrittenBytes, wrote.Bytes)
	if !wrote.Published.IsZero() {
		gauge(ch, fleetLastWrite, float64(wrote.Published.UnixMilli())/1000)
	}
	gauge(ch, fleetLookupCurrent, oneIf(c.node.Lookup.Health().Current))
	if c.node.Reader.IsFollowed() {
		gauge(ch, fleetCurrent, oneIf(c.node.Reader.Health().Current))
	}
	for use, certificate := range c.node.Certificates() {
		gauge(ch, fleetExpiry, float64(certificate.Expires.Unix()), use)
	}
	wanted := c.node.Elector.Wanted()
	for _, w := range wanted[:min(len(wanted), maxLocks)] {
		ptype, name := untrusted.Valid(w.Lock.Type), untrusted.Valid(w.Lock.Name)
		gauge(ch, fleetLockHeld, oneIf(w.Held), ptype, name)
		if w.Held {
			gauge(ch, fleetLockCalls, float64(w.Calls), ptype, name)
		}
	}
}
