package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// fleetConfig says to which fleet the node belongs.
type fleetConfig config.Fleet

// Etcd returns where etcd is, and where in it the fleet is kept.
func Etcd(c config.Etcd) (fleet.Etcd, fleet.Space) {
	return fleet.Etcd{
		Endpoints: c.Endpoints, CA: c.CA, Cert: c.Cert, Key: c.Key, ServerName: c.ServerName, User: c.User, PasswordFile: c.PasswordFile,
		Timeout: c.Timeout,
	}, fleet.Space{Prefix: c.Prefix, Namespace: c.Namespace}
}

// enabled says whether the node belongs to a fleet.
func (c fleetConfig) enabled() bool { return len(c.Etcd.Endpoints) > 0 }

// validate reports what is wrong to check, by the path in the configuration file.
func (c fleetConfig) validate(check func(field string, err error)) {
	if !c.enabled() {
		rest := c.Etcd
		if rest.CA+rest.Cert+rest.Key+rest.ServerName+rest.User+rest.PasswordFile != "" {
			check("fleet.etcd", errors.New("there is no endpoint: name at least one with fleet.etcd.endpoints, or leave the rest out too"))
		}
		if c.Serve.Listen != "" || len(c.Serve.Allow) > 0 || c.tls() != (fleet.TLS{}) {
			check("fleet.serve", errors.New("the node belongs to no fleet: name etcd with fleet.etcd.endpoints"))
		}
		return
	}
	etcd, space := Etcd(c.Etcd)
	check("fleet.etcd", etcd.Validate())
	check("fleet.etcd.namespace", space.Validate())
	if c.Node != "" {
		check("fleet.node", fleet.ValidateNode(c.Node))
	}
	check("fleet.presence", fleet.ValidateTimes(cmp.Or(c.Presence, fleet.DefaultPresence), cmp.Or(c.Retention, fleet.DefaultRetention)))
	check("fleet.labels", fleet.ValidateLabels(c.Labels))
	if c.Drift < 0 {
		check("fleet.drift", fmt.Errorf("%v is negative: use a time above zero, or leave it out", c.Drift))
	}
	for i, o := range c.Offers {
		err := cmp.Or(
			access.ValidatePatterns("node", o.Node), access.ValidatePatterns("types", o.Types...), access.ValidatePatterns("names", o.Names...))
		if err != nil {
			check("fleet.offers", fmt.Errorf("rule %d: %w", i+1, err))
		}
	}
	if name := c.Serve.ServerName; len(c.Offers) > 0 && name != "" && !strings.Contains(name, "{node}") {
		check("fleet.offers", errors.New("fleet.serve.serverName is the same for all nodes, so that each can pass for any other and offer what "+
			"that one may: put {node} into it, and into the certificates the name of the node"))
	}
	c.validateServe(check)
	for _, text := range c.Dispense {
		if _, ok := pluginName(text); !ok {
			check("fleet.dispense", fmt.Errorf("%q is not a plugin: write TYPE/NAME", text))
		}
	}
	for _, ptype := range c.Exclusive {
		check("fleet.exclusive", validateType(ptype))
	}
}

// settings returns what all nodes should have alike: the same text for settings that are alike.
func (c fleetConfig) settings() string {
	text, _ := json.Marshal(struct { // strings can be encoded
		Exclusive []string `json:"exclusive"`
		Presence  string   `json:"presence"`
	}{append([]string{}, slices.Compact(slices.Sorted(slices.Values(c.Exclusive)))...), cmp.Or(c.Presence, fleet.DefaultPresence).String()})
	return string(text)
}

// readerIdle is how long the fleet is followed after the last request for it.
const readerIdle = 5 * time.Minute

// fleetMember is the daemon's part in a fleet: it reads it, calls it, and keeps the locks of plugins. Nil stands for none.
type fleetMember struct {
	cluster  *fleet.Cluster
	node     string
	space    fleet.Space
	presence time.Duration // of the nodes
	// credentials are nil if the node neither takes calls from others nor calls them.
	credentials *fleet.Credentials
	calledAs    string // the node, if it takes calls from others
	lookup      *fleet.Lookup
	dialer      *fleet.Dialer
	elector     *locks.Elector // nil if there are no locks
	exclusive   []string
	offers      atomic.Pointer[[]config.FleetOffer]
	unlocked    *unlocked
	drain       *drain
	drift       time.Duration // fleet.drift; zero for the default
	isNamed     atomic.Bool   // the node owns its name in the fleet
	altered     chan struct{} // gets a value when that or the cordon changes
	announce    func(fleet.Condition)
	log         *slog.Logger

	mu       sync.Mutex
	reader   *fleet.Reader       // nil while nobody asks
	versions *patchbay.Condition // the last judgment of its versions; nil for none
	users    int
	idle     *time.Timer
	closed   bool
}

// conditions are those of the node's part in the fleet, without that of the publisher.
func (m *fleetMember) conditions() []patchbay.Condition {
	if m == nil {
		return nil
	}
	all := []patchbay.Condition{m.settingsCondition()}
	if len(m.certificates()) > 0 {
		all = append(all, m.certificateCondition())
	}
	if c, drained := m.drain.condition(); drained {
		all = append(all, c)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reader != nil && m.versions != nil {
		all = append(all, *m.versions)
	}
	return all
}

// settingsCondition says whether this node and others have the same settings.
func (m *fleetMember) settingsCondition() patchbay.Condition {
	if c := m.unlocked.condition(); !c.OK || m.elector == nil {
		return c
	}
	return patchbay.Condition(m.elector.Condition())
}

// node returns the name of the node; empty if that is not known.
func (c fleetConfig) node() string {
	if c.Node != "" {
		return c.Node
	}
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(host)
}

// newFleetMember returns the daemon's part in a fleet, nil if the node belongs to none. Nothing is published, and no lock wanted, before
// join; the caller calls close.
func newFleetMember(
	c fleetConfig, statePath string, runtime *patchbay.Runtime, called *peerCalls, log *slog.Logger,
) (m *fleetMember, err error) {
	if !c.enabled() {
		return nil, nil
	}
	etcd, space := Etcd(c.Etcd)
	m = &fleetMember{
		node: c.node(), space: space, exclusive: c.Exclusive, log: log, announce: announce(runtime.Publish, log),
		altered: make(chan struct{}, 1), presence: c.Presence, drift: c.Drift,
	}
	m.drain = newDrain(m.holdsLock)
	m.unlocked = newUnlocked(m.node, c.Exclusive)
	m.useOffers(c.Offers)
	if m.node == "" {
		return nil, errors.New("cannot find out the host name for the fleet; set fleet.node")
	}
	if m.cluster, err = fleet.Connect(etcd); err != nil {
		return nil, err
	}
	if files := c.tls(); files != (fleet.TLS{}) {
		if m.credentials, err = fleet.NewCredentials(files); err != nil {
			return nil, err
		}
		if c.Serve.Listen != "" {
			m.calledAs = m.node
		}
	}
	m.lookup = fleet.OpenLookup(m.cluster, fleet.LookupConfig{Space: space, Whole: m.acquire, NodeFile: statePath + ".nodes", Logger: log})
	dial := fleet.DialerConfig{Find: m.find, Credentials: m.credentials, Node: m.node, Labels: c.Labels, Called: called.ended}
	dial.Unhealthy = func(ptype, name string) bool { return isUnwell(runtime.Launcher(), runtime.Plugins, ptype, name) }
	if len(c.Exclusive) > 0 {
		m.elector, err = locks.New(m.cluster, locks.Config{
			Space: space, Node: m.node, TTL: c.Presence, TokenFile: statePath + ".tokens", Logger: log,
			Settings: c.settings(), Differ: m.announce,
		})
		if err != nil {
			m.lookup.Close()
			return nil, err
		}
	}
	dial.Leader, dial.MayOffer = m.leader, m.mayOffer
	local := m.guard(runtime.Registry())
	dial.Local = func(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
		ctx, cancel := context.WithTimeout(ctx, localWait)
		defer cancel()
		return proxy.ConnTo(ctx, local, ptype, name)
	}
	m.dialer = fleet.NewDialer(dial)
	return m, nil
}

// newPublisher returns what publishes the node, nil if it belongs to no fleet. Listener is where the node takes calls from others, nil for
// nowhere.
func (m *fleetMember) newPublisher(
	c fleetConfig, statePath string, build Build, local source, l launched, listener net.Listener,
) (*fleet.Publisher, error) {
	if m == nil {
		return nil, nil
	}
	address, err := c.published(listener)
	if err != nil {
		return nil, err
	}
	return fleet.NewPublisher(m.cluster, fleet.PublisherConfig{
		Space: m.space, Node: m.node, Address: address, Version: build.Version, Presence: c.Presence, Retention: c.Retention,
		Settings: c.settings(), InstanceFile: statePath + ".instance", Labels: c.Labels, Local: fleetLocal{local}, Logger: m.log,
		Unhealthy: func() map[string]bool { return unwell(l) }, Locked: m.unlocked.begin, Named: m.setNamed, Cordoned: m.setCordon,
	})
}

// setNamed records whether the node owns its name.
func (m *fleetMember) setNamed(owned bool) {
	if m.isNamed.Swap(owned) != owned {
		wake(m.altered)
	}
}

// setCordon records whether the node is drained.
func (m *fleetMember) setCordon(c fleet.Cordon) {
	m.drain.set(c)
	wake(m.altered)
}

// mayCompete reports whether the node may compete for locks. Callers look for the holder at the daemon that owns the name.
func (m *fleetMember) mayCompete() bool { return m.isNamed.Load() && m.drain.isOpen() }

// holdsLock reports whether the node holds a lock.
func (m *fleetMember) holdsLock() bool {
	return m.elector != nil && slices.ContainsFunc(m.elector.Wanted(), func(w locks.Wanted) bool { return w.Held })
}

// join begins to publish the node and to compete for the locks of its plugins. Judge judges the calls of other nodes again. What it returns
// ends that and returns when nothing is left of it, which takes no more than a few seconds, whatever etcd does.
func (m *fleetMember) join(
	ctx context.Context, publisher *fleet.Publisher, registry *dynamicplugins.Store, local source, judge func(),
) (stop func()) {
	if m == nil {
		return func() {}
	}
	return inBackground(ctx, func(ctx context.Context) {
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() { publisher.Run(ctx) })
		running.Go(func() { m.watchCertificates(ctx, judge) })
		running.Go(func() { m.unlocked.run(ctx, m.lookup, m.announce) })
		running.Go(func() { m.drain.watch(ctx, m.announce) })
		running.Go(func() { m.watchVersions(ctx) })
		if m.elector == nil {
			return
		}
		running.Go(func() { m.elector.Run(ctx) })
		for changes := (fleetLocal{local}).Changes(ctx); ctx.Err() == nil; {
			var wanted []fleet.Lock
			if m.mayCompete() {
				wanted = m.wantedLocks(registry)
			}
			m.elector.Stand(wanted)
			select {
			case <-changes:
			case <-m.altered:
			case <-ctx.Done():
			}
		}
	})
}

// close ends what requests have begun.
func (m *fleetMember) close() error {
	if m == nil {
		return nil
	}
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
	m.lookup.Close()
	m.dialer.Close()
	return nil
}

// acquire returns a reader of the fleet, which it opens if there is none. The caller calls release when it is done.
func (m *fleetMember) acquire() (reader *fleet.Reader, release func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, server.ErrStopping
	}
	if m.idle != nil {
		m.idle.Stop()
		m.idle = nil
	}
	if m.reader == nil {
		m.reader = fleet.Open(m.cluster, fleet.ReaderConfig{Space: m.space, Presence: m.presence, Logger: m.log})
	}
	m.users++
	return m.reader, sync.OnceFunc(m.release), nil
}

// openReader returns the reader of the fleet, nil if there is none.
func (m *fleetMember) openReader() *fleet.Reader {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reader
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
			m.reader, m.versions = nil, nil
		}
	})
}

// fleetLocal is the node as the fleet sees it. It is a [fleet.Local].
type fleetLocal struct{ source }

// Conditions leaves out what is about the fleet and not about the node.
func (l fleetLocal) Conditions() []fleet.Condition {
	own := slices.DeleteFunc(l.source.Conditions(), func(c patchbay.Condition) bool { return c.Name == versionsCondition })
	return each(own, func(c patchbay.Condition) fleet.Condition { return fleet.Condition(c) })
}

func (l fleetLocal) Changes(ctx context.Context) <-chan struct{} {
	events := l.Events(ctx, 0)
	changes := make(chan struct{}, 1)
	go func() { // ends with ctx, which closes the events
		for range events {
			wake(changes)
		}
	}()
	return changes
}
