package daemon

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// versionsCondition is the name of the condition that nodes run different versions of a plugin.
	versionsCondition = "fleet-versions"
	// defaultDrift is the default of fleet.drift. A rolling upgrade may take that long.
	defaultDrift = time.Hour
	// versionsLook is how often the versions are judged at most: each time costs as much as there are plugins in the fleet.
	versionsLook = time.Minute
)

func (s fleetService) ListFleetVersions(
	ctx context.Context, request *patchbayv1.ListFleetVersionsRequest,
) (*patchbayv1.ListFleetVersionsResponse, error) {
	reader, release, err := s.read(ctx, firstRead)
	if err != nil {
		return nil, err
	}
	defer release()
	f := filterOf(request.GetFilter())
	nodes, only := f.Nodes, f.Versions
	f.Nodes, f.Versions = nil, nil // those of all nodes say whether versions differ
	versions := slices.DeleteFunc(versionsIn(reader, f), func(v *patchbayv1.FleetVersion) bool {
		isOn := func(node string) bool { return slices.Contains(v.GetNodes(), node) }
		return len(only) > 0 && !slices.Contains(only, v.GetVersion()) || len(nodes) > 0 && !slices.ContainsFunc(nodes, isOn)
	})
	return &patchbayv1.ListFleetVersionsResponse{Versions: versions, Health: healthMessage(reader.Health())}, nil
}

// versionsIn returns which versions of the plugins that pass a filter are current on which nodes, by default only of registered ones.
func versionsIn(reader *fleet.Reader, f fleet.Filter) []*patchbayv1.FleetVersion {
	if len(f.States) == 0 {
		f.States = []reconciler.State{reconciler.StateRegistered}
	}
	return versionsOf(reader.Plugins(f))
}

// versionsOf returns the versions ordered by type, name and version.
func versionsOf(plugins []fleet.Plugin) []*patchbayv1.FleetVersion {
	found, first := map[[3]string]*patchbayv1.FleetVersion{}, map[*patchbayv1.FleetVersion]time.Time{}
	for _, p := range plugins {
		if !p.Current {
			continue
		}
		key := [3]string{p.Type, p.Name, p.Version}
		v := found[key]
		if v == nil {
			v = &patchbayv1.FleetVersion{Type: untrusted.Valid(p.Type), Name: untrusted.Valid(p.Name), Version: untrusted.Valid(p.Version)}
			found[key], first[v] = v, p.RegisteredAt
		}
		v.Nodes = append(v.Nodes, p.Node)
		if p.RegisteredAt.Before(first[v]) {
			first[v] = p.RegisteredAt
		}
	}
	versions := slices.SortedFunc(maps.Values(found), func(a, b *patchbayv1.FleetVersion) int {
		return cmp.Or(comparePlugin(a, b), strings.Compare(a.GetVersion(), b.GetVersion()))
	})
	for rest := versions; len(rest) > 0; {
		n := 1
		for n < len(rest) && comparePlugin(rest[0], rest[n]) == 0 {
			n++
		}
		firsts := each(rest[:n], func(v *patchbayv1.FleetVersion) time.Time { return first[v] })
		slices.SortFunc(firsts, time.Time.Compare)
		for _, v := range rest[:n] {
			if n > 1 {
				v.DiffersSince = timestamp(firsts[1])
			}
		}
		rest = rest[n:]
	}
	return versions
}

func comparePlugin(a, b *patchbayv1.FleetVersion) int {
	return cmp.Or(strings.Compare(a.GetType(), b.GetType()), strings.Compare(a.GetName(), b.GetName()))
}

// driftIn returns the condition of versions: it is degraded if those of a plugin have differed for longer than drift. Differ says since
// when the versions of plugins have differed, as was known before; driftIn brings it up to date. A plugin that restarts is registered
// again, and so has differed for longer than its present instance.
func driftIn(
	versions []*patchbayv1.FleetVersion, differ map[string]time.Time, drift time.Duration, now time.Time,
) patchbay.Condition {
	c, last := patchbay.Condition{Name: versionsCondition, OK: true}, now.Add(-drift)
	var names []string
	before := maps.Clone(differ)
	clear(differ)
	for i, v := range versions {
		if v.GetDiffersSince() == nil || i > 0 && comparePlugin(versions[i-1], v) == 0 {
			continue
		}
		name, since := v.GetType()+"/"+v.GetName(), v.GetDiffersSince().AsTime()
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
func (m *fleetMember) watchVersions(ctx context.Context) {
	if m.drift > 0 {
		if _, release, err := m.acquire(); err == nil {
			defer release()
		}
	}
	drift, differ := cmp.Or(m.drift, defaultDrift), map[string]time.Time{}
	for degraded := false; backoff.Pause(ctx, min(versionsLook, max(drift/10, time.Second))); {
		reader := m.openReader()
		if reader == nil || !reader.Health().Current {
			continue
		}
		c := driftIn(versionsIn(reader, fleet.Filter{}), differ, drift, time.Now())
		m.mu.Lock()
		m.versions = &c
		m.mu.Unlock()
		if degraded == c.OK {
			degraded = !degraded
			m.announce(fleet.Condition(c))
		}
	}
}
