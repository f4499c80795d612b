package daemon

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/fleet"
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

// collectLocks makes the metrics of the locks that the node wants.
func collectLocks(ch chan<- prometheus.Metric, wanted []fleet.Wanted) {
	labels := []string{"type", "name"}
	held := prometheus.NewDesc("patchbay_fleet_lock_held", "Whether the node holds a lock that it wants: 1 if so, else 0. Only the first 256 "+
		"locks are told, in the order of their types and names.", labels, nil)
	calls := prometheus.NewDesc("patchbay_fleet_lock_calls", "Calls in progress under a lock that the node holds.", labels, nil)
	for _, w := range wanted[:min(len(wanted), maxLocks)] {
		ptype, name := valid(w.Type), valid(w.Name)
		gauge(ch, held, oneIf(w.Held), ptype, name)
		if w.Held {
			gauge(ch, calls, float64(w.Calls), ptype, name)
		}
	}
}
