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
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/certfile"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The names of conditions.
const (
	certificatesCondition = "fleet-certificates"
	drainCondition        = "fleet-drain"    // exists on a drained node; client.WaitDrained reads it in the records of other nodes
	settingsCondition     = "fleet-settings" // not OK if the settings of nodes differ
	versionsCondition     = "fleet-versions" // not OK if nodes run different versions of a plugin
)

const (
	// settingsPause is the minimum time between two comparisons of the settings. The cost of each grows with the number of contenders.
	settingsPause = time.Second
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
	if c := n.Cluster.Certificate(); !c.Expires.IsZero() {
		all["etcd"] = c
	}
	return all
}

// certificateCondition returns a condition that is degraded if a certificate cannot be used, and the time after which that may change.
func (n *Node) certificateCondition() (plugin.Condition, time.Duration) {
	condition, next := plugin.Condition{Name: certificatesCondition, OK: true}, certificateLook
	all := n.Certificates()
	for _, use := range slices.Sorted(maps.Keys(all)) {
		c := all[use]
		if c.Err != nil {
			condition.OK, condition.Since = false, c.Since
			condition.Message = "the certificate for " + use + " cannot be used: " + untrusted.Valid(c.Err.Error())
		}
		if left := time.Until(c.Expires) + time.Millisecond; left > 0 {
			next = min(next, left)
		}
	}
	return condition, next
}

// lookAtCertificates also checks the calls in progress again, because their CA may have been removed.
func (n *Node) lookAtCertificates() (plugin.Condition, time.Duration) {
	defer n.rules.Recheck()
	return n.certificateCondition()
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

// look returns a condition that is OK for a node that is not drained. The condition of a drained node may change with the next call.
func (d *drain) look() (c plugin.Condition, next time.Duration) {
	c, drained := d.condition()
	if !drained {
		return plugin.Condition{Name: drainCondition, OK: true}, 0
	}
	return c, drainLook
}

// settings compares the settings of the fleet with those of this node. If other nodes compete for locks but this one does not, because its
// configuration does not list their types, the node does not call its own plugins with these locks, because other nodes expect that only
// the holder is called.
type settings struct {
	node      string // the name of this node
	exclusive []string
	own       string        // see settingsOf
	found     chan struct{} // closed when a node competes for locks
	once      sync.Once
	// read returns the locks of the fleet, and the settings by node.
	read func() ([]keys.LockState, map[string]string)

	mu     sync.Mutex
	nodes  map[plugin.Name]string // a node that competes
	status plugin.Condition
}

func newSettings(node string, c config.Fleet) *settings {
	ok := plugin.Condition{Name: settingsCondition, OK: true}
	return &settings{node: node, exclusive: c.Exclusive, own: settingsOf(c), found: make(chan struct{}), status: ok}
}

// begin is called when a node competes for locks. Before that, the settings are not followed.
func (s *settings) begin() { s.once.Do(func() { close(s.found) }) }

// look compares the settings.
func (s *settings) look() (plugin.Condition, time.Duration) {
	states, texts := s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes = map[plugin.Name]string{}
	types := map[string]string{}
	for _, state := range states {
		// Keys of this node are from a time when it had another configuration.
		others := slices.DeleteFunc(state.Nodes, func(node string) bool { return node == s.node })
		if slices.Contains(s.exclusive, state.Lock.Type) || len(others) == 0 {
			continue
		}
		s.nodes[state.Lock] = others[0]
		if before := types[state.Lock.Type]; before == "" || others[0] < before {
			types[state.Lock.Type] = others[0]
		}
	}
	maps.DeleteFunc(texts, func(node, text string) bool { return text == s.own || keys.ValidateNode(node) != nil })
	c := plugin.Condition{Name: settingsCondition, Since: time.Now()}
	switch unlocked, differing := slices.Sorted(maps.Keys(types)), slices.Sorted(maps.Keys(texts)); {
	case len(unlocked) > 0:
		c.Message = fmt.Sprintf("other nodes compete for locks of %s, node %s for example, and fleet.exclusive of this node does not list "+
			"that: it does not call its own plugins of these names; give all nodes the same fleet.exclusive",
			untrusted.Valid(strings.Join(unlocked, ", ")), types[unlocked[0]])
	case len(differing) > 0 && len(s.exclusive) > 0:
		c.Message = fmt.Sprintf("nodes of the fleet differ in fleet.exclusive or fleet.presence: %d from this one, node %s for example, which "+
			"has %.200s where this one has %s; exclusive plugins may be active there too: give all nodes the same",
			len(differing), differing[0], untrusted.Valid(texts[differing[0]]), s.own)
	default:
		c.OK, c.Since = true, time.Time{}
	}
	if !c.OK && !s.status.OK {
		c.Since = s.status.Since
	}
	s.status = c
	return c, 0
}

// elsewhere returns a node that competes for a lock for which this one does not; empty for none.
func (s *settings) elsewhere(l plugin.Name) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[l]
}

// condition returns a condition that is degraded if the settings differ.
func (s *settings) condition() plugin.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
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
	firsts := map[plugin.Name][]time.Time{} // when the versions of a plugin were first registered; 1970 if that is not known
	for i, p := range plugins {
		name, registered := plugin.Name{Type: p.GetType(), Name: p.GetName()}, p.GetRegisteredAt().AsTime()
		if i == 0 || compare(plugins[i-1], p) != 0 {
			versions = append(versions, &patchbayv1.FleetVersion{Type: name.Type, Name: name.Name, Version: p.GetVersion()})
			firsts[name] = append(firsts[name], registered)
		}
		last, first := versions[len(versions)-1], &firsts[name][len(firsts[name])-1]
		if last.Nodes = append(last.Nodes, p.Node.Name); registered.Before(*first) {
			*first = registered
		}
	}
	for _, v := range versions {
		// The versions differ since the second one was registered.
		times := slices.SortedFunc(slices.Values(firsts[plugin.Name{Type: v.GetType(), Name: v.GetName()}]), time.Time.Compare)
		if len(times) > 1 && times[1].Unix() != 0 {
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

// lookAtVersions compares the versions, while the daemon follows the fleet.
func (n *Node) lookAtVersions() (plugin.Condition, time.Duration) {
	drift := cmp.Or(n.Fleet.Drift, defaultDrift)
	if n.Fleet.Drift > 0 {
		n.Reader.Use()
	}
	if n.Reader.IsFollowed() && n.Reader.Health().Current {
		n.versions.Store(new(versionsDiffer(Versions(n.Reader, fleet.Filter{}), n.differ, drift, time.Now())))
	}
	c := cmp.Or(n.versions.Load(), &plugin.Condition{Name: versionsCondition, OK: true})
	return *c, min(versionsLook, max(drift/10, time.Second))
}

// watchConditions announces changes of conditions until ctx ends.
func (n *Node) watchConditions(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	if len(n.Certificates()) > 0 {
		watching.Go(func() { watched{look: n.lookAtCertificates, texts: true}.watch(ctx, n.announce) })
	}
	watching.Go(func() { watched{look: n.drain.look, changed: n.drain.changed}.watch(ctx, n.announce) })
	watching.Go(func() { watched{look: n.lookAtVersions}.watch(ctx, n.announce) })
	select {
	case <-n.settings.found:
		var changed <-chan struct{}
		changed, n.settings.read = n.Lookup.FollowLocks()
		watched{look: n.settings.look, changed: changed, pause: settingsPause, texts: true}.watch(ctx, n.announce)
	case <-ctx.Done():
	}
}

// watched is a condition whose changes are announced.
type watched struct {
	// look returns the condition, and the time after which it is called again; zero for not before changed has a value.
	look    func() (plugin.Condition, time.Duration)
	changed <-chan struct{}
	pause   time.Duration // the minimum time between two calls of look
	texts   bool          // whether other messages are changes too
}

// watch calls announce after changes, until ctx ends.
func (w watched) watch(ctx context.Context, announce func(plugin.Condition)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for before := (plugin.Condition{OK: true}); ; {
		select {
		case <-w.changed:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		now, next := w.look()
		if now.OK != before.OK || w.texts && now.Message != before.Message {
			announce(now)
		}
		if before = now; next > 0 {
			timer.Reset(next)
		}
		backoff.Pause(ctx, w.pause)
	}
}
