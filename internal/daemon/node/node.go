// Package node makes the daemon a member of a fleet: it publishes the plugins of this node, takes calls from other nodes and calls their
// plugins, competes for the locks of exclusive plugins, and has the conditions of certificates, versions, settings and drains.
package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Calls counts the calls between this node and each other node.
type Calls interface {
	Ended(peer string, err error)
}

// Events publishes events.
type Events interface {
	Publish(plugin.Event)
}

// Health reports launched plugins that are not serving or do not respond.
type Health interface {
	IsUnhealthy(ptype, name string) bool
}

// Local has the plugins and conditions that a node publishes.
type Local interface {
	Plugins() []plugin.Status
	Conditions() []plugin.Condition
	Events(ctx context.Context, tail int) <-chan plugin.Event
}

// Node is a member of a fleet. A nil *Node does not belong to a fleet; the methods that can be called on it are documented. The exported
// fields are set before Init. The caller then calls Publish, Run and Close.
type Node struct {
	Fleet    config.Fleet
	State    string                // the path of the daemon's state file; the node creates its own files next to it
	Version  string                // of Patchbay
	Registry *dynamicplugins.Store // has the plugins of this node
	Health   Health
	Called   Calls // counts the calls to plugins of other nodes
	Served   Calls // counts the calls of other nodes to plugins of this one
	Events   Events
	Log      *slog.Logger

	// The following are set by Init, and the publisher by Publish.

	Cluster   *fleet.Cluster
	Reader    *fleet.Reader
	Lookup    *fleet.Lookup
	Elector   *locks.Elector // nil if there are no exclusive plugins
	Publisher *fleet.Publisher

	name        string
	credentials *nodecall.Credentials // nil if no calls between this node and others are configured
	dialer      *nodecall.Dialer
	rules       *access.Rules[[]config.FleetAllow]
	offers      atomic.Pointer[[]config.FleetOffer]
	settings    *settings
	drain       *drain
	isNamed     atomic.Bool   // whether the node has its name in the fleet
	altered     chan struct{} // receives a value after a change of isNamed or of the cordon

	local    Local                            // set by Publish
	versions atomic.Pointer[plugin.Condition] // the result of the last comparison of the versions; nil for none
	differ   map[string]time.Time             // see versionsDiffer
}

// Init prepares the node, which must be in a fleet, see [IsEnabled]. It returns an error for a configuration or a file that cannot be used.
func (n *Node) Init() (err error) {
	n.name, n.altered, n.rules = Name(n.Fleet), make(chan struct{}, 1), access.NewRules(n.Fleet.Serve.Allow)
	n.differ = map[string]time.Time{}
	n.drain = newDrain(n.holdsLock)
	n.settings = newSettings(n.name, n.Fleet)
	n.offers.Store(&n.Fleet.Offers)
	if n.name == "" {
		return errors.New("cannot find out the host name for the fleet; set fleet.node")
	}
	if n.Cluster, err = fleet.Connect(fleet.Etcd(n.Fleet.Etcd)); err != nil {
		return err
	}
	if files := tlsOf(n.Fleet); files != (nodecall.TLS{}) {
		if n.credentials, err = nodecall.NewCredentials(files); err != nil {
			return err
		}
	}
	if len(n.Fleet.Exclusive) > 0 {
		n.Elector = &locks.Elector{
			Cluster: n.Cluster, Node: n.name, TTL: n.Fleet.Presence, TokenFile: n.State + ".tokens", Logger: n.Log,
		}
		if err := n.Elector.Init(); err != nil {
			return err
		}
	}
	n.Reader = fleet.Open(n.Cluster, fleet.ReaderConfig{Presence: n.Fleet.Presence, Logger: n.Log})
	n.Lookup = fleet.OpenLookup(n.Cluster, fleet.LookupConfig{Whole: n.Reader, NodeFile: n.State + ".nodes", Logger: n.Log})
	local := n.Exclusive(n.Registry)
	n.dialer = &nodecall.Dialer{
		Find: n.find, Credentials: n.credentials, Node: n.name, Labels: n.Fleet.Labels, Called: n.Called.Ended,
		Unhealthy: n.Health.IsUnhealthy,
		Leader:    n.leader, MayOffer: n.mayOffer,
		Local: func(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
			ctx, cancel := context.WithTimeout(ctx, localWait)
			defer cancel()
			return proxy.ConnTo(ctx, local, ptype, name)
		},
	}
	return nil
}

// Publish prepares to publish the node, which Run does. The node takes calls from other nodes at the listener; nil if it takes none.
func (n *Node) Publish(local Local, listener net.Listener) error {
	if n == nil {
		return nil
	}
	address, err := addressOf(n.Fleet, listener)
	if err != nil {
		return err
	}
	n.local = local
	n.Publisher, err = fleet.NewPublisher(n.Cluster, fleet.PublisherConfig{
		Node: n.name, Address: address, Version: n.Version, Presence: n.Fleet.Presence, Retention: n.Fleet.Retention,
		Settings: n.settings.own, InstanceFile: n.State + ".instance", Labels: n.Fleet.Labels, Local: published{local}, Logger: n.Log,
		Locked: n.settings.begin, Named: n.setNamed, Cordoned: n.setCordon,
	})
	return err
}

// Run publishes the node and competes for the locks of its plugins, until ctx ends. It then returns within a few seconds, even if etcd does
// not answer.
func (n *Node) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { n.Publisher.Run(ctx) })
	running.Go(func() { n.watchConditions(ctx) })
	if n.Elector == nil {
		return
	}
	running.Go(func() { n.Elector.Run(ctx) })
	for changes := (published{n.local}).Changes(ctx); ctx.Err() == nil; {
		var wanted []plugin.Name
		// Compete only with the name: callers look for the holder of a lock at the daemon that has it.
		if n.isNamed.Load() && n.drain.isOpen() {
			wanted = n.wantedLocks()
		}
		n.Elector.Stand(wanted)
		select {
		case <-changes:
		case <-n.altered:
		case <-ctx.Done():
		}
	}
}

// Close stops reading the fleet in etcd and closes the connections to other nodes. It can be called on a nil Node.
func (n *Node) Close() error {
	if n == nil {
		return nil
	}
	n.Reader.Close()
	n.Lookup.Close()
	n.dialer.Close()
	return nil
}

// Reload applies the rules for calls and offers of another configuration, and reads the certificate files that have changed. Calls that are
// no longer allowed are aborted. It can be called on a nil Node.
func (n *Node) Reload(c config.Fleet) {
	if n != nil {
		n.rules.Replace(c.Serve.Allow)
		n.offers.Store(&c.Offers)
		n.Certificates()
	}
}

// Conditions returns the conditions of the node as a member of the fleet. It can be called on a nil Node.
func (n *Node) Conditions() []plugin.Condition {
	if n == nil {
		return nil
	}
	all := []plugin.Condition{n.settings.condition(), n.Publisher.Condition()}
	if len(n.Certificates()) > 0 {
		c, _ := n.certificateCondition()
		all = append(all, c)
	}
	if c, drained := n.drain.condition(); drained {
		all = append(all, c)
	}
	if c := n.versions.Load(); c != nil && n.Reader.IsFollowed() {
		all = append(all, *c)
	}
	return all
}

// announce logs and publishes a changed condition.
func (n *Node) announce(c plugin.Condition) {
	kind, message := plugin.EventRecovered, c.Name+" is in order again"
	if c.OK {
		n.Log.Info(message)
	} else {
		kind, message = plugin.EventDegraded, c.Message
		n.Log.Warn(message)
	}
	n.Events.Publish(plugin.Event{Time: time.Now(), Kind: kind, Message: message})
}

// setNamed records whether the node has its name.
func (n *Node) setNamed(owned bool) {
	if n.isNamed.Swap(owned) != owned {
		fleet.Notify(n.altered)
	}
}

// setCordon records whether the node is drained.
func (n *Node) setCordon(c fleet.Cordon) {
	n.drain.set(c)
	fleet.Notify(n.altered)
}

// published is the node as other nodes see it. It is a [fleet.Local].
type published struct{ Local }

// Conditions returns the conditions of the node, without those of the fleet.
func (p published) Conditions() (all []plugin.Condition) {
	for _, c := range p.Local.Conditions() {
		if c.Name != versionsCondition && c.Name != fleet.ConditionName {
			all = append(all, c)
		}
	}
	return all
}

func (p published) Changes(ctx context.Context) <-chan struct{} {
	events := p.Events(ctx, 0)
	changes := make(chan struct{}, 1)
	go func() { // this goroutine ends with ctx, which closes events
		for range events {
			fleet.Notify(changes)
		}
	}()
	return changes
}

// holdsLock reports whether the node holds a lock.
func (n *Node) holdsLock() bool {
	return slices.ContainsFunc(n.Elector.Wanted(), func(w locks.Wanted) bool { return w.Held })
}
