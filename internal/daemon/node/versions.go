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

func versionsOf(plugins []fleet.Plugin) (versions []*patchbayv1.FleetVersion) {
	plugins = slices.DeleteFunc(plugins, func(p fleet.Plugin) bool { return !p.Current })
	byName := func(a, b fleet.Plugin) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	}
	slices.SortStableFunc(plugins, func(a, b fleet.Plugin) int { return cmp.Or(byName(a, b), strings.Compare(a.Version, b.Version)) })
	var firsts []time.Time // when each version of the last plugin was first registered
	finish := func() {
		ofPlugin := versions[len(versions)-len(firsts):]
		slices.SortFunc(firsts, time.Time.Compare)
		for _, v := range ofPlugin {
			if len(firsts) > 1 && !firsts[1].IsZero() {
				v.DiffersSince = timestamppb.New(firsts[1])
			}
		}
		firsts = nil
	}
	for i, p := range plugins {
		isSame := i > 0 && byName(plugins[i-1], p) == 0
		if !isSame {
			finish()
		}
		if !isSame || plugins[i-1].Version != p.Version {
			versions = append(versions, &patchbayv1.FleetVersion{
				Type: untrusted.Valid(p.Type), Name: untrusted.Valid(p.Name), Version: untrusted.Valid(p.Version),
			})
			firsts = append(firsts, p.RegisteredAt)
		}
		last, first := versions[len(versions)-1], &firsts[len(firsts)-1]
		last.Nodes = append(last.Nodes, p.Node)
		if p.RegisteredAt.Before(*first) {
			*first = p.RegisteredAt
		}
	}
	finish()
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
			"patchbay fleet versions lists them", untrusted.Valid(untrusted.Cut(strings.Join(names, ", "), 128)), drift)
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
