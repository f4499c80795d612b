package machine

import (
	"cmp"
	"slices"
)

// Plugins describes every instance whose socket exists, every restored one that is not settled yet, and those that live on though their
// sockets were removed, sorted by type and name, the newest instance of each first.
func (m *Machine) Plugins() []Status {
	type ranked struct {
		Status
		in *instance
	}
	var all []ranked
	for _, in := range m.instances() {
		if in.phase != Gone || m.state(in) == StateDeregistering {
			all = append(all, ranked{m.status(in), in})
		}
	}
	for _, in := range m.unseen() {
		all = append(all, ranked{m.status(in), in})
	}
	for _, o := range m.robbed {
		if o.in.lane == nil { // or it is among those that are deregistering
			all = append(all, ranked{o.status, o.in})
		}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name), newestFirst(a.in, b.in),
			cmp.Compare(a.SocketPath, b.SocketPath))
	})
	statuses := make([]Status, len(all))
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

func (m *Machine) status(in *instance) Status {
	s := Status{
		Type: in.announced.Type, Name: in.announced.Name, Versions: in.announced.Versions, Version: in.version(),
		State: in.state, Current: in.held(), Registration: in.registration,
		Endpoint: in.shownEndpoint(), SocketPath: in.info.SocketPath, Source: in.source,
		FirstSeen: in.info.Timestamp, Since: in.since, Attempts: in.tries, NextRetry: in.next,
	}
	if in.recorded() {
		s.Instance = in.id
		s.RegisteredAt = in.registeredAt
		if s.FirstSeen.IsZero() || s.RegisteredAt.Before(s.FirstSeen) {
			s.FirstSeen = s.RegisteredAt // its socket was seen before the host started anew
		}
	}
	if s.Type == "" {
		s.Type, s.Name = in.refused.Type, in.refused.Name
	}
	if in.failure != nil {
		s.LastError = in.failure.Err.Error()
	}
	return s
}
