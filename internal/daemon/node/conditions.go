package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/certfile"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The names of conditions.
const (
	certificatesCondition = "fleet-certificates"
	drainCondition        = "fleet-drain"    // exists on a drained node; client.WaitDrained reads it in the records of other nodes
	versionsCondition     = "fleet-versions" // not OK if nodes run different versions of a plugin
)

const (
	// certificateLook is the time between checks of the files, in addition to each call. No file system reliably reports that a file was
	// replaced.
	certificateLook = time.Minute
	// drainQuiet is how long other nodes must not have called a drained node: some of them learn of the drain later than the node itself.
	drainQuiet, drainLook = 5 * time.Second, time.Second // drainLook is how often the condition of a drained node is checked
	// versionsLook is the minimum time between two comparisons of the versions. The cost of each grows with the number of plugins in the
	// fleet.
	versionsLook = time.Minute
	defaultDrift = time.Hour // the default of fleet.drift; a rolling upgrade may take that long
)

// Certificates returns the certificates of the node, by their use. It reads files that have changed. It can be called on a nil Node.
func (n *Node) Certificates() map[string]certfile.Certificate {
	all := map[string]certfile.Certificate{}
	if n == nil {
		return all
	}
	if n.credentials != nil {
		calledAs := "" // the name of the node if it takes calls from others
		if n.Fleet.Serve.Listen != "" {
			calledAs = n.name
		}
		all["nodes"] = n.credentials.Certificate(calledAs)
	}
	if c := n.cluster.Certificate(); !c.Expires.IsZero() {
		all["etcd"] = c
	}
	return all
}

// certificateCondition returns a condition that is degraded if a certificate cannot be used.
func (n *Node) certificateCondition() plugin.Condition {
	condition := plugin.Condition{Name: certificatesCondition, OK: true}
	all := n.Certificates()
	for _, use := range slices.Sorted(maps.Keys(all)) {
		if c := all[use]; c.Err != nil {
			condition.OK, condition.Since = false, c.Since
			condition.Message = "the certificate for " + use + " cannot be used: " + untrusted.Valid(c.Err.Error())
		}
	}
	return condition
}

// watchCertificates announces changes of the condition until ctx ends. It also checks the calls in progress again, because their CA may
// have been removed.
func (n *Node) watchCertificates(ctx context.Context) {
	before := plugin.Condition{Name: certificatesCondition, OK: true}
	for pause := time.Duration(0); len(n.Certificates()) > 0 && backoff.Pause(ctx, pause); {
		now := n.certificateCondition()
		if now.OK != before.OK || now.Message != before.Message {
			n.announce(now)
		}
		before = now
		n.rules.Recheck()
		pause = certificateLook
		for _, c := range n.Certificates() {
			if left := time.Until(c.Expires) + time.Millisecond; left > 0 {
				pause = min(pause, left)
			}
		}
	}
}

// drain records whether the node is drained, and whether it still serves the fleet.
type drain struct {
	holdsLock func() bool
	changed   chan struct{} // receives a value after set

	mu     sync.Mutex
	cordon *fleet.Cordon // nil until it is known
	calls  int           // the number of calls of other nodes in progress
	quiet  time.Time     // the time when the last of them ended, or the node was drained
}

func newDrain(holdsLock func() bool) *drain {
	return &drain{holdsLock: holdsLock, changed: make(chan struct{}, 1)}
}

// set records the cordon of the node.
func (d *drain) set(c fleet.Cordon) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cordon == nil || *d.cordon != c {
		d.cordon, d.quiet = &c, time.Now()
		fleet.Notify(d.changed)
	}
}

// isOpen reports whether the node is known not to be drained.
func (d *drain) isOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cordon != nil && !d.cordon.Drained
}

// begin counts a call of another node; the caller calls end when it has ended.
func (d *drain) begin() (end func()) {
	count := func(n int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls, d.quiet = d.calls+n, time.Now()
	}
	count(1)
	return func() { count(-1) }
}

// inProgress returns the number of calls of other nodes in progress.
func (d *drain) inProgress() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// condition returns a condition that is degraded while the drained node still serves the fleet. Its Since is the time of the drain, even if
// the condition is OK, so that readers know to which drain it belongs. drained is false for a node that is not drained and has no such
// condition.
func (d *drain) condition() (c plugin.Condition, drained bool) {
	holds := d.holdsLock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cordon == nil || !d.cordon.Drained {
		return c, false
	}
	c = plugin.Condition{Name: drainCondition, Since: d.cordon.Since}
	switch {
	case holds:
		c.Message = "this node is drained and still holds a lock"
	case d.calls > 0 || time.Since(d.quiet) < drainQuiet:
		c.Message = fmt.Sprintf("this node is drained and has served calls of other nodes in the last %v; calls that name it, or a plugin that "+
			"no other node has, still reach it", drainQuiet)
	default:
		c.OK = true
	}
	return c, true
}

// watch announces changes of the condition until ctx ends.
func (d *drain) watch(ctx context.Context, announce func(plugin.Condition)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for degraded := false; ; {
		select {
		case <-d.changed:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		c, drained := d.condition()
		if c.Name = drainCondition; degraded == (c.OK || !drained) {
			degraded = !degraded
			c.OK = !degraded
			announce(c)
		}
		if drained { // the condition may change with the next call
			timer.Reset(drainLook)
		}
	}
}

// unlocked has the locks for which other nodes compete but this one does not, because its configuration does not list their types. The node
// does not call its own plugins with these locks, because other nodes expect that only the holder is called.
type unlocked struct {
	node      string // the name of this node
	exclusive []string
	found     chan struct{} // closed when a node competes for locks
	once      sync.Once

	mu     sync.Mutex
	nodes  map[plugin.Name]string // a node that competes
	status plugin.Condition
}

func newUnlocked(node string, exclusive []string) *unlocked {
	ok := plugin.Condition{Name: locks.SettingsCondition, OK: true}
	return &unlocked{node: node, exclusive: exclusive, found: make(chan struct{}), status: ok}
}

// begin is called when a node competes for locks. Before that, unlocked does not follow them.
func (u *unlocked) begin() { u.once.Do(func() { close(u.found) }) }

// run follows the locks until ctx ends. It waits until there are any.
func (u *unlocked) run(ctx context.Context, lookup *fleet.Lookup, announce func(plugin.Condition)) {
	select {
	case <-u.found:
	case <-ctx.Done():
		return
	}
	changed, states := lookup.FollowLocks()
	u.follow(ctx, changed, states, announce)
}

// unlockedPause is the minimum time between two reads of the locks. The cost of each grows with the number of contenders.
const unlockedPause = time.Second

func (u *unlocked) follow(
	ctx context.Context, changed <-chan struct{}, states func() []keys.LockState, announce func(plugin.Condition),
) {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		before := u.condition()
		u.set(states())
		if now := u.condition(); now != before {
			announce(now)
		}
		backoff.Pause(ctx, unlockedPause)
	}
}

// set records the nodes that compete for locks.
func (u *unlocked) set(states []keys.LockState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.nodes = map[plugin.Name]string{}
	types := map[string]string{}
	for _, state := range states {
		// Keys of this node are from a time when it had another configuration.
		others := slices.DeleteFunc(state.Nodes, func(node string) bool { return node == u.node })
		if slices.Contains(u.exclusive, state.Lock.Type) || len(others) == 0 {
			continue
		}
		u.nodes[state.Lock] = others[0]
		if before := types[state.Lock.Type]; before == "" || others[0] < before {
			types[state.Lock.Type] = others[0]
		}
	}
	if len(types) == 0 {
		u.status = plugin.Condition{Name: locks.SettingsCondition, OK: true}
		return
	}
	if u.status.OK {
		u.status.OK, u.status.Since = false, time.Now()
	}
	names := slices.Sorted(maps.Keys(types))
	u.status.Message = fmt.Sprintf("other nodes compete for locks of %s, node %s for example, and fleet.exclusive of this node does not list "+
		"that: it does not call its own plugins of these names; give all nodes the same fleet.exclusive",
		untrusted.Valid(strings.Join(names, ", ")), types[names[0]])
}

// elsewhere returns a node that competes for a lock for which this one does not; empty for none.
func (u *unlocked) elsewhere(l plugin.Name) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.nodes[l]
}

// condition returns a condition that is degraded if there are such locks.
func (u *unlocked) condition() plugin.Condition {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.status
}

// Versions returns the current versions of the plugins that match a filter, each with its nodes, ordered by type, name and version. Without
// states in the filter, it returns only registered plugins.
func Versions(reader *fleet.Reader, f fleet.Filter) []*patchbayv1.FleetVersion {
	if len(f.States) == 0 {
		f.States = []plugin.State{plugin.StateRegistered}
	}
	return versionsOf(reader.Plugins(f))
}

func versionsOf(plugins []fleet.Instance) (versions []*patchbayv1.FleetVersion) {
	plugins = slices.DeleteFunc(plugins, func(p fleet.Instance) bool { return !p.GetCurrent() })
	compare := func(a, b fleet.Instance) int {
		return cmp.Or(strings.Compare(a.GetType(), b.GetType()), strings.Compare(a.GetName(), b.GetName()),
			strings.Compare(a.GetVersion(), b.GetVersion()))
	}
	slices.SortStableFunc(plugins, compare)
	firsts := map[plugin.Name][]time.Time{} // when the versions of a plugin were first registered
	for i, p := range plugins {
		name := plugin.Name{Type: p.GetType(), Name: p.GetName()}
		registered := time.Time{}
		if p.GetRegisteredAt() != nil {
			registered = p.GetRegisteredAt().AsTime()
		}
		if i == 0 || compare(plugins[i-1], p) != 0 {
			versions = append(versions, &patchbayv1.FleetVersion{Type: name.Type, Name: name.Name, Version: p.GetVersion()})
			firsts[name] = append(firsts[name], registered)
		}
		last, first := versions[len(versions)-1], &firsts[name][len(firsts[name])-1]
		last.Nodes = append(last.Nodes, p.Node.Name)
		if registered.Before(*first) {
			*first = registered
		}
	}
	for _, times := range firsts {
		slices.SortFunc(times, time.Time.Compare)
	}
	for _, v := range versions {
		// The versions differ since the second one was registered.
		if times := firsts[plugin.Name{Type: v.GetType(), Name: v.GetName()}]; len(times) > 1 && !times[1].IsZero() {
			v.DiffersSince = timestamppb.New(times[1])
		}
	}
	return versions
}

// versionsDiffer returns the condition of versions, which is degraded if the versions of a plugin have differed for longer than drift. It
// updates differ, which has the time since which the versions of a plugin have differed. This may be longer ago than the registration of
// its present instances, because a plugin that restarts is registered again.
func versionsDiffer(versions []*patchbayv1.FleetVersion, differ map[string]time.Time, drift time.Duration, now time.Time) plugin.Condition {
	c, last := plugin.Condition{Name: versionsCondition, OK: true}, now.Add(-drift)
	var names []string
	before := maps.Clone(differ)
	clear(differ)
	for _, v := range versions {
		name := v.GetType() + "/" + v.GetName()
		if _, seen := differ[name]; seen || v.GetDiffersSince() == nil {
			continue
		}
		since := v.GetDiffersSince().AsTime()
		if earlier, ok := before[name]; ok && earlier.Before(since) {
			since = earlier
		}
		differ[name] = since
		if since.After(last) {
			continue
		}
		names = append(names, name)
		if c.OK || since.Before(c.Since) {
			c.OK, c.Since = false, since
		}
	}
	if !c.OK {
		c.Message = fmt.Sprintf("nodes have run different versions of %s for more than %v; finish or undo the upgrade: "+
			"patchbay fleet versions lists them", untrusted.ValidCut(strings.Join(names, ", "), 128), drift)
	}
	return c
}

// watchVersions compares the versions until ctx ends, while the daemon follows the fleet.
func (n *Node) watchVersions(ctx context.Context) {
	drift, differ := cmp.Or(n.Fleet.Drift, defaultDrift), map[string]time.Time{}
	for degraded := false; backoff.Pause(ctx, min(versionsLook, max(drift/10, time.Second))); {
		if n.Fleet.Drift > 0 {
			n.reader.Use()
		}
		if !n.reader.IsFollowed() || !n.reader.Health().Current {
			continue
		}
		c := versionsDiffer(Versions(n.reader, fleet.Filter{}), differ, drift, time.Now())
		n.mu.Lock()
		n.versions = &c
		n.mu.Unlock()
		if degraded == c.OK {
			degraded = !degraded
			n.announce(c)
		}
	}
}
