package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/fleet"
)

// FleetConfig says to which fleet the node belongs. The zero value stands for none.
type FleetConfig struct {
	// Etcd is where the fleet is kept. Without endpoints the node belongs to no fleet.
	Etcd fleet.Etcd
	// Space is where in it.
	Space fleet.Space
	// Node is the name of the node; empty for the host name, in lower case.
	Node string
	// Address is HOST:PORT at which other nodes reach this one; empty for where Serve listens.
	Address string
	// Serve says how the node and others call each other's plugins.
	Serve FleetServe
	// Exclusive are the types, or roles, of plugins of which only one instance of a name in the fleet may be active.
	Exclusive []string
	// Presence and Retention are those of [fleet.PublisherConfig]; zero for the defaults.
	Presence, Retention time.Duration
}

// enabled says whether the node belongs to a fleet.
func (c FleetConfig) enabled() bool { return len(c.Etcd.Endpoints) > 0 }

// validate reports what is wrong to check, by the path in the configuration file.
func (c FleetConfig) validate(check func(field string, err error)) {
	if !c.enabled() {
		rest := c.Etcd
		rest.Endpoints, rest.Timeout = nil, 0
		if !reflect.DeepEqual(rest, fleet.Etcd{}) {
			check("fleet.etcd", errors.New("there is no endpoint: name at least one with fleet.etcd.endpoints, or leave the rest out too"))
		}
		if c.Serve.Listen != "" || len(c.Serve.Allow) > 0 || c.Serve.enabled() {
			check("fleet.serve", errors.New("the node belongs to no fleet: name etcd with fleet.etcd.endpoints"))
		}
		return
	}
	check("fleet.etcd", c.Etcd.Validate())
	check("fleet.etcd.namespace", c.Space.Validate())
	if c.Node != "" {
		check("fleet.node", fleet.ValidateNode(c.Node))
	}
	presence, retention := c.Presence, c.Retention
	if presence == 0 {
		presence = fleet.DefaultPresence
	}
	if retention == 0 {
		retention = fleet.DefaultRetention
	}
	check("fleet.presence", fleet.ValidateTimes(presence, retention))
	c.Serve.validate(check)
	for _, ptype := range c.Exclusive {
		check("fleet.exclusive", validateType(ptype))
	}
}

// equal says whether two configurations are alike, but for the rules, to whose change a running daemon can change.
func (c FleetConfig) equal(other FleetConfig) bool {
	c.Serve.Allow, other.Serve.Allow = nil, nil
	return reflect.DeepEqual(c, other)
}

// readerIdle is how long the fleet is followed after the last request for it.
const readerIdle = 5 * time.Minute

// fleetMember is the daemon's part in a fleet. Nil stands for none.
type fleetMember struct {
	cluster *fleet.Cluster
	node    string
	local   fleetLocal
	calls   *fleetCalls
	// credentials are nil if the node neither takes calls from others nor calls them.
	credentials *fleet.Credentials
	space       fleet.Space
	publisher   *fleet.Publisher
	log         *slog.Logger
	cancel      context.CancelFunc
	running     sync.WaitGroup

	mu            sync.Mutex
	reader        *fleet.Reader     // nil while nobody asks
	closedReaders fleet.ReaderStats // the sum of what readers that are closed did
	users         int
	idle          *time.Timer
	closed        bool
}

// newFleetMember returns the daemon's part in a fleet, nil if the node belongs to none. Listener is where it takes calls from other nodes,
// nil for nowhere. Nothing is published before join; the caller calls leave.
func newFleetMember(
	c FleetConfig, build Build, source source, registry *dynamicplugins.Store, listener net.Listener, log *slog.Logger,
) (*fleetMember, error) {
	if !c.enabled() {
		return nil, nil
	}
	node := c.Node
	if node == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("cannot find out the host name for the fleet: %w; set fleet.node", err)
		}
		node = strings.ToLower(host)
	}
	cluster, err := fleet.Connect(c.Etcd)
	if err != nil {
		return nil, err
	}
	address, err := c.published(listener)
	if err != nil {
		return nil, err
	}
	publisher, err := fleet.NewPublisher(cluster, fleet.PublisherConfig{
		Space: c.Space, Node: node, Address: address, Version: build.Version, Presence: c.Presence, Retention: c.Retention,
		Local: fleetLocal{source}, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	m := &fleetMember{
		cluster: cluster, node: node, local: fleetLocal{source}, space: c.Space, publisher: publisher, log: log, cancel: func() {},
	}
	if c.Serve.enabled() {
		if m.credentials, err = fleet.NewCredentials(c.Serve.TLS); err != nil {
			return nil, err
		}
	}
	if m.calls, err = newFleetCalls(m, c, registry); err != nil {
		return nil, err
	}
	return m, nil
}

// join begins to publish the node and to compete for its locks, until ctx ends. It does not block.
func (m *fleetMember) join(ctx context.Context, registry *dynamicplugins.Store) {
	if m == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	m.cancel = cancel
	m.running.Go(func() { m.publisher.Run(ctx) })
	m.calls.stand(ctx, registry, m.local.Changes(ctx))
}

// guard returns the registry without the plugins whose locks the node does not hold.
func (m *fleetMember) guard(registry connector) connector {
	if m == nil {
		return registry
	}
	return m.calls.guard(registry)
}

// caller returns what calls the fleet, nil if the node belongs to none.
func (m *fleetMember) caller() *fleetCalls {
	if m == nil {
		return nil
	}
	return m.calls
}

// leave ends everything that join and the requests have begun. It takes no more than a few seconds, whatever etcd does.
func (m *fleetMember) leave() error {
	if m == nil {
		return nil
	}
	m.cancel()
	m.mu.Lock()
	reader := m.reader
	m.reader, m.closed = nil, true
	if m.idle != nil {
		m.idle.Stop()
	}
	m.mu.Unlock()
	if reader != nil {
		reader.Close()
	}
	m.running.Wait()
	return m.calls.close()
}

// conditions returns the condition of the publisher, if there is one.
func (m *fleetMember) conditions() []patchbay.Condition {
	if m == nil {
		return nil
	}
	return []patchbay.Condition{patchbay.Condition(m.publisher.Condition())}
}

// acquire returns a reader of the fleet, which it opens if there is none. The caller calls release when it is done.
func (m *fleetMember) acquire() (reader *fleet.Reader, release func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, errStopping
	}
	if m.idle != nil {
		m.idle.Stop()
		m.idle = nil
	}
	if m.reader == nil {
		m.reader = fleet.Open(m.cluster, fleet.ReaderConfig{Space: m.space, Logger: m.log})
	}
	m.users++
	return m.reader, sync.OnceFunc(m.release), nil
}

func (m *fleetMember) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users > 0 || m.closed {
		return
	}
	m.idle = time.AfterFunc(readerIdle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.users == 0 && !m.closed && m.reader != nil {
			m.reader.Close()
			m.closedReaders = m.closedReaders.Add(m.reader.Stats())
			m.reader = nil
		}
	})
}

// fleetLocal is the node as the fleet sees it.
type fleetLocal struct{ source source }

// Plugins implements fleet.Local.
func (l fleetLocal) Plugins() []patchbay.PluginStatus { return l.source.Plugins() }

// Conditions implements fleet.Local. The one of the fleet itself is left out: whoever reads it in the fleet knows better.
func (l fleetLocal) Conditions() []fleet.Condition {
	var conditions []fleet.Condition
	for _, c := range l.source.Conditions() {
		if c.Name != fleet.ConditionName {
			conditions = append(conditions, fleet.Condition(c))
		}
	}
	return conditions
}

// Changes implements fleet.Local.
func (l fleetLocal) Changes(ctx context.Context) <-chan struct{} {
	events := l.source.Events(ctx, 0)
	changes := make(chan struct{}, 1)
	go func() { // ends with ctx, which closes the events
		for range events {
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	return changes
}
