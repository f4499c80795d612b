package machine

import (
	"cmp"
	"maps"
	"slices"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Plugins returns the statuses of the wanted plugins: instances whose sockets exist, restored instances that have not been seen yet, and
// instances that still serve although their sockets were removed. They are sorted by type and name, the newest instance of each first.
func (m *Machine) Plugins(wanted func(plugin.Name) bool) []plugin.Status {
	type ranked struct {
		plugin.Status
		in *instance
	}
	unwanted := func(in *instance) bool { return !wanted(in.shownKey()) }
	var all []ranked
	for _, in := range inOrder(slices.DeleteFunc(m.present(), unwanted)) {
		if in.phase != Gone || m.state(in) == plugin.StateDeregistering {
			all = append(all, ranked{m.status(in), in})
		}
	}
	for _, in := range inOrder(slices.DeleteFunc(slices.Collect(maps.Values(m.restored)), unwanted)) {
		all = append(all, ranked{m.status(in), in})
	}
	for _, o := range m.robbed {
		if o.in.lane == nil && wanted(o.status.PluginName()) { // otherwise it is among the instances that are deregistering
			all = append(all, ranked{o.status, o.in})
		}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name), newestFirst(a.in, b.in),
			cmp.Compare(a.SocketPath, b.SocketPath))
	})
	statuses := make([]plugin.Status, len(all))
	for i, s := range all {
		statuses[i] = s.Status
	}
	return statuses
}

func (in *instance) shownEndpoint() string {
	if in.announced.Type == "" {
		return ""
	}
	return in.endpoint()
}

// shownKey returns the type and name under which an instance is listed.
func (in *instance) shownKey() plugin.Name { return cmp.Or(in.announced.PluginName(), in.refused) }

func (m *Machine) status(in *instance) plugin.Status {
	shown := in.shownKey()
	s := plugin.Status{
		Type: shown.Type, Name: shown.Name, Versions: in.announced.Versions, Version: in.version(),
		State: in.state, Current: in.held(), Registration: in.registration,
		Endpoint: in.shownEndpoint(), SocketPath: in.info.SocketPath, Source: in.source,
		FirstSeen: in.info.Timestamp, Since: in.since, Attempts: in.tries, NextRetry: in.next,
	}
	if in.recorded() {
		s.Instance = in.id
		s.RegisteredAt = in.registeredAt
		if s.FirstSeen.IsZero() || s.RegisteredAt.Before(s.FirstSeen) {
			s.FirstSeen = s.RegisteredAt // the host has restarted since
		}
	}
	if in.failure != nil {
		s.LastError, s.FailingSince = in.failure.Err.Error(), in.failing
		if in.phase == Waiting || in.phase == Telling {
			s.Since = in.failing // since the first failure, not the last
		}
	}
	return s
}
