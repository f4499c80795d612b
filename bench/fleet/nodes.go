package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/plugin"
)

// changing is the name of the plugin of each node that changes.
const changing = "plugin-0.example.com"

// node is a simulated node: what a publisher sees of it.
type node struct {
	name    string
	changed chan struct{}
	*fleet.Publisher
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	plugins []plugin.Status
}

func newNode(number, plugins int) *node {
	n := &node{name: fmt.Sprintf("node-%05d.rack-%03d.example.com", number, number/40), changed: make(chan struct{}, 1)}
	for i := range plugins {
		p := plugin.Status{
			Type: "CSIPlugin", Name: fmt.Sprintf("plugin-%d.example.com", i), Version: "1.0.0", State: plugin.StateRegistered,
			Instance: fmt.Sprintf("%013d%013d", number, i), Source: plugin.SourceDiscovered, Current: true, RegisteredAt: time.Now(),
			Endpoint: fmt.Sprintf("/var/lib/kubelet/plugins/plugin-%d.example.com/csi.sock", i),
		}
		p.Registration.Roles = []string{"csi-node"}
		p.Registration.Details = map[string]string{"csi.node-id": n.name, "csi.vendor-version": "v1.14.2"}
		n.plugins = append(n.plugins, p)
	}
	return n
}

// start begins to publish, as a daemon does that has just been started.
func (n *node) start(cluster *fleet.Cluster) (err error) {
	n.Publisher, err = fleet.NewPublisher(cluster, fleet.PublisherConfig{Node: n.name, Address: "10.0.0.1:7400", Version: "v1.0.0", Local: n})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	n.cancel, n.done = cancel, done
	go func() { defer close(done); n.Run(ctx) }()
	return nil
}

// change gives the plugin that changes another version.
func (n *node) change(version string) {
	n.mu.Lock()
	plugins := append([]plugin.Status(nil), n.plugins...)
	plugins[0].Version = version
	n.plugins = plugins
	n.mu.Unlock()
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Plugins implements [fleet.Local].
func (n *node) Plugins() []plugin.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.plugins
}

// Conditions implements [fleet.Local].
func (n *node) Conditions() []plugin.Condition {
	return []plugin.Condition{{Name: "discovery", OK: true}, {Name: "handlers", OK: true}, {Name: "state", OK: true}}
}

// Changes implements [fleet.Local].
func (n *node) Changes(context.Context) <-chan struct{} { return n.changed }

// stopAll ends nodes in order, all at once.
func stopAll(nodes []*node) {
	for _, n := range nodes {
		if n.cancel != nil {
			n.cancel()
		}
	}
	for _, n := range nodes {
		if n.done != nil {
			<-n.done
		}
	}
}
