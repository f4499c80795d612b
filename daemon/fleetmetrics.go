package daemon

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/fleet/locks"
)

const (
	// maxPeers bounds how many nodes have a label of their own, in each direction.
	maxPeers = 256
	// maxLocks bounds for how many locks there are metrics: plugins choose their names.
	maxLocks = 256
)

// peerCalls counts calls between this node and others, by the other one. Those beyond maxPeers are counted together.
type peerCalls struct {
	calls *prometheus.CounterVec

	mu    sync.Mutex
	peers map[string]bool
}

func newPeerCalls(calls *prometheus.CounterVec) *peerCalls {
	return &peerCalls{calls: calls, peers: map[string]bool{}}
}

// ended counts a call.
func (p *peerCalls) ended(peer string, err error) {
	p.calls.WithLabelValues(p.label(peer), codeLabel(status.Code(err))).Inc()
}

func (p *peerCalls) label(peer string) string {
	peer = valid(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.peers[peer] && len(p.peers) >= maxPeers {
		return labelOther
	}
	p.peers[peer] = true
	return peer
}

// watchFleet has what the daemon does for the fleet collected; nil stands for a node of no fleet.
func (m *metrics) watchFleet(member *fleetMember, publisher *fleet.Publisher) {
	if member != nil {
		m.registry.MustRegister(fleetCollector{member, publisher})
	}
}

// What fleetCollector tells, as an index of fleetDescs.
const (
	fleetSessions = iota
	fleetFailures
	fleetWrites
	fleetWrittenBytes
	fleetLastWrite
	fleetReaderLists
	fleetReaderWatches
	fleetReaderEvents
	fleetReaderCurrent
	fleetLookupReads
	fleetLookupEvents
	fleetLookupCurrent
	fleetCertificateExpiry
	fleetLockHeld
	fleetLockCalls
)

var fleetDescs = [...]*prometheus.Desc{
	fleetSessions:      fleetDesc("sessions_total", "How often etcd was found and the node published there."),
	fleetFailures:      fleetDesc("failures_total", "Connections to etcd and writes for the fleet that failed."),
	fleetWrites:        fleetDesc("writes_total", "Transactions that wrote to etcd what the node publishes."),
	fleetWrittenBytes:  fleetDesc("written_bytes_total", "The size of the values that were written to etcd."),
	fleetLastWrite:     fleetDesc("last_write_timestamp_seconds", "When the node was last written to etcd, in seconds since 1970."),
	fleetReaderLists:   fleetDesc("reader_lists_total", "How often the whole fleet was read from etcd."),
	fleetReaderWatches: fleetDesc("reader_watches_total", "How often a watch of the fleet began in etcd."),
	fleetReaderEvents:  fleetDesc("reader_events_total", "Changes of keys of the fleet that came from etcd."),
	fleetReaderCurrent: fleetDesc("reader_current", "Whether the daemon follows the fleet in etcd: 1 if so, 0 if it has lost it; absent "+
		"while nobody asks for the fleet."),
	fleetLookupReads:  fleetDesc("lookup_reads_total", "What was read from etcd for calls: a node, nodes that have a plugin, or a lock."),
	fleetLookupEvents: fleetDesc("lookup_events_total", "Changes of keys that came from etcd for calls."),
	fleetLookupCurrent: fleetDesc("lookup_current", "Whether the daemon follows what is called in the fleet in etcd: 1 if so or if there is "+
		"nothing to follow, 0 if it has lost etcd."),
	fleetCertificateExpiry: fleetDesc("certificate_expiry_timestamp_seconds", "When a certificate of the node expires, in seconds since "+
		"1970: the one for calls between nodes, and the one for etcd.", "for"),
	fleetLockHeld: fleetDesc("lock_held", "Whether the node holds a lock that it wants: 1 if so, else 0. Only the first 256 locks are told, "+
		"in the order of their types and names.", "type", "name"),
	fleetLockCalls: fleetDesc("lock_calls", "Calls in progress under a lock that the node holds.", "type", "name"),
}

func fleetDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("patchbay_fleet_"+name, help, labels, nil)
}

// fleetCollector makes the metrics of the fleet. It is a [prometheus.Collector].
type fleetCollector struct {
	member    *fleetMember
	publisher *fleet.Publisher
}

func (c fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range fleetDescs {
		ch <- d
	}
}

func (c fleetCollector) Collect(ch chan<- prometheus.Metric) {
	wrote, followed := c.publisher.Stats(), c.member.lookup.Stats()
	read, health := c.member.readerStats()
	for what, count := range map[int]uint64{
		fleetSessions: wrote.Sessions, fleetFailures: wrote.Failures, fleetWrites: wrote.Writes, fleetWrittenBytes: wrote.Bytes,
		fleetReaderLists: read.Lists, fleetReaderWatches: read.Watches, fleetReaderEvents: read.Events,
		fleetLookupReads: followed.Lists, fleetLookupEvents: followed.Events,
	} {
		counter(ch, fleetDescs[what], count)
	}
	gauge(ch, fleetDescs[fleetLookupCurrent], oneIf(c.member.lookup.Health().Current))
	for use, certificate := range c.member.certificates() {
		gauge(ch, fleetDescs[fleetCertificateExpiry], float64(certificate.Expires.Unix()), use)
	}
	if c.member.elector != nil {
		collectLocks(ch, c.member.elector.Wanted())
	}
	if !wrote.Published.IsZero() {
		gauge(ch, fleetDescs[fleetLastWrite], float64(wrote.Published.UnixMilli())/1000)
	}
	if health != nil {
		gauge(ch, fleetDescs[fleetReaderCurrent], oneIf(health.Current))
	}
}

// collectLocks makes the metrics of the locks that the node wants.
func collectLocks(ch chan<- prometheus.Metric, wanted []locks.Wanted) {
	for _, w := range wanted[:min(len(wanted), maxLocks)] {
		ptype, name := valid(w.Type), valid(w.Name)
		gauge(ch, fleetDescs[fleetLockHeld], oneIf(w.Held), ptype, name)
		if w.Held {
			gauge(ch, fleetDescs[fleetLockCalls], float64(w.Calls), ptype, name)
		}
	}
}
