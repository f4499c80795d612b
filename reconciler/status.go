package reconciler

import (
	"cmp"
	"slices"
)

// Plugins describes every instance whose socket exists, every restored one that is not settled yet, and those that live on though their
// sockets were removed, at most 64 of each user and 1,024 in all, sorted by type and name, the
// newest instance of each first.
func (r *Reconciler) Plugins() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	type ranked struct {
		Status
		in *instance
	}
	var all []ranked
	for in := range r.instances() {
		if !in.gone || in.state == StateDeregistering {
			all = append(all, ranked{in.status(), in})
		}
	}
	for _, in := range r.restored {
		all = append(all, ranked{in.status(), in})
	}
	for _, m := range r.robbed {
		if m.in.lane == nil { // or it is among those that are deregistering
			all = append(all, ranked{m.status, m.in})
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

func (in *instance) status() Status {
	s := Status{
		Type: in.announced.Type, Name: in.announced.Name, Versions: in.announced.Versions,
		State: in.state, Current: in.held(),
		SocketPath: in.info.SocketPath, Source: in.source,
		FirstSeen: in.info.Timestamp, Since: in.since,
		Attempts: in.attempts, NextRetry: in.nextRetry,
	}
	s.Version, s.Registration = in.version(), in.registration
	if s.Type != "" {
		s.Endpoint = in.endpoint()
	}
	if in.recorded {
		s.Instance = in.id
		s.RegisteredAt = in.registeredAt
		if s.FirstSeen.IsZero() || s.RegisteredAt.Before(s.FirstSeen) {
			s.FirstSeen = s.RegisteredAt // its socket was seen before the host started anew
		}
	}
	if s.Type == "" {
		s.Type, s.Name = in.refused.Type, in.refused.Name
	}
	if in.lastErr != nil {
		s.LastError = in.lastErr.Error()
	}
	return s
}

// noRegistry stands in where nothing keeps the registered instances.
type noRegistry struct{}

func (noRegistry) Stage(Instance) (Staged, error)      { return noStaged{}, nil }
func (noRegistry) Remove(string, string, string) error { return nil }
func (noRegistry) Confirm(string, string, string)      {}
func (noRegistry) Unreachable(_, _, _ string, _ error) {}

type noStaged struct{}

func (noStaged) Publish()       {}
func (noStaged) Discard() error { return nil }
