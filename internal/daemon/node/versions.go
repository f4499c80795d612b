package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// versionsCondition is the name of the condition that nodes run different versions of a plugin.
	versionsCondition = "fleet-versions"
	// defaultDrift is the default of fleet.drift. A rolling upgrade may take that long.
	defaultDrift = time.Hour
	// versionsLook is how often the versions are judged at most: each time costs as much as there are plugins in the fleet.
	versionsLook = time.Minute
)

// Versions returns which versions of the plugins that match a filter are current on which nodes, ordered by type, name and version. Without
// states in the filter, only registered plugins count.
func Versions(reader *fleet.Reader, f fleet.Filter) []*patchbayv1.FleetVersion {
	if len(f.States) == 0 {
		f.States = []plugin.State{plugin.StateRegistered}
	}
	return versionsOf(reader.Plugins(f))
}

func versionsOf(plugins []fleet.Instance) (versions []*patchbayv1.FleetVersion) {
	plugins = slices.DeleteFunc(plugins, func(p fleet.Instance) bool { return !p.Current })
	compare := func(a, b fleet.Instance) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
	}
	slices.SortStableFunc(plugins, compare)
	firsts := map[plugin.Name][]time.Time{} // when each version of a plugin was first registered
	for i, p := range plugins {
		name := plugin.Name{Type: untrusted.Valid(p.Type), Name: untrusted.Valid(p.Name)}
		if i == 0 || compare(plugins[i-1], p) != 0 {
			versions = append(versions, &patchbayv1.FleetVersion{Type: name.Type, Name: name.Name, Version: untrusted.Valid(p.Version)})
			firsts[name] = append(firsts[name], p.RegisteredAt)
		}
		last, first := versions[len(versions)-1], &firsts[name][len(firsts[name])-1]
		last.Nodes = append(last.Nodes, p.Node)
		if p.RegisteredAt.Before(*first) {
			*first = p.RegisteredAt
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

// versionsDiffer returns the condition of versions, which is degraded if those of a plugin have differed for longer than drift. It updates
// differ, which has since when the versions of plugins have differed: a plugin that restarts is registered again, so its versions may have
// differed for longer than its present instance exists.
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

// watchVersions judges the versions until ctx ends, while the daemon follows the fleet.
func (n *Node) watchVersions(ctx context.Context) {
	if n.Fleet.Drift > 0 {
		if _, release, err := n.Reader(); err == nil {
			defer release()
		}
	}
	drift, differ := cmp.Or(n.Fleet.Drift, defaultDrift), map[string]time.Time{}
	for degraded := false; backoff.Pause(ctx, min(versionsLook, max(drift/10, time.Second))); {
		reader := n.openReader()
		if reader == nil || !reader.Health().Current {
			continue
		}
		c := versionsDiffer(Versions(reader, fleet.Filter{}), differ, drift, time.Now())
		n.mu.Lock()
		n.versions = &c
		n.mu.Unlock()
		if degraded == c.OK {
			degraded = !degraded
			n.announce(c)
		}
	}
}
