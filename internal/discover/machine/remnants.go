package machine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The limits of a list of remnants. The oldest are removed first.
const (
	remnantsPerUser = 64
	remnantsInTotal = 1024
)

// remnant is the last status of a refused instance, or of an instance that still serves although its socket was removed.
type remnant struct {
	in     *instance // nil for a refusal
	by     plugin.Account
	status plugin.Status
}

// of reports whether the remnant belongs to an account. Unknown accounts count as one user.
func (r remnant) of(by plugin.Account) bool { return r.by.UID == by.UID && r.by.Known == by.Known }

// remnants are limited by user and in total, the oldest first.
type remnants []remnant

// keep adds a remnant, and returns the remnants that were removed because of the limits.
func (r *remnants) keep(added remnant) (forgotten []remnant) {
	*r = append(*r, added)
	mine := 0
	for _, o := range *r {
		if o.of(added.by) {
			mine++
		}
	}
	if mine > remnantsPerUser {
		forgotten = append(forgotten, r.oldest(func(o remnant) bool { return o.of(added.by) }))
	}
	if len(*r) > remnantsInTotal {
		forgotten = append(forgotten, r.oldest(func(remnant) bool { return true }))
	}
	return forgotten
}

// oldest removes and returns the oldest remnant that matches. There must be one.
func (r *remnants) oldest(matches func(remnant) bool) remnant {
	i := slices.IndexFunc(*r, matches)
	o := (*r)[i]
	*r = slices.Delete(*r, i, i+1)
	return o
}

func (r *remnants) forget(matches func(remnant) bool) { *r = slices.DeleteFunc(*r, matches) }

// keepRefusal records the last refusal of a name, one for each user, so that users cannot replace each other's.
func (m *Machine) keepRefusal(in *instance) {
	key := in.named()
	if key.Type == "" {
		return
	}
	const textMax = 4096
	kept := remnant{by: in.account, status: plugin.Status{
		Type: key.Type, Name: key.Name, State: plugin.StateRefused, Endpoint: in.shownEndpoint(), SocketPath: in.info.SocketPath,
		Source: in.source, FirstSeen: in.info.Timestamp, Since: m.Now, Attempts: in.tries,
		LastError: untrusted.Cut(in.failure.Err.Error(), textMax),
	}}
	m.refusals.forget(func(o remnant) bool { return o.status.PluginName() == key && o.of(kept.by) })
	m.refusals.keep(kept)
}

// forgetRemnants removes the remnants with the name of an instance that is now registered.
func (m *Machine) forgetRemnants(in *instance) {
	key := in.announced.PluginName()
	m.refusals.forget(func(o remnant) bool { return o.status.PluginName() == key })
	for _, o := range inOrder(slices.Collect(maps.Keys(m.unlinked))) {
		if o.announced.PluginName() == key {
			m.unwatchUnlinked(o)
		}
	}
}

// watchUnlinked continues to watch a registered instance whose socket was removed. If it still serves after unlinkedWindow, another program
// has probably removed the socket.
func (m *Machine) watchUnlinked(in *instance) {
	watch := in.watches[Registration]
	if in.phase == Gone || !in.recorded() || watch == unwatched && in.phase != Missing {
		return
	}
	in.watches[Registration] = unwatched // so that halt does not end this watch
	m.unlinked[in] = true
	m.set(in, Rob, unlinkedWindow)
	if watch != watched { // its hint came earlier
		m.hintOfUnlinked(in)
	}
}

// hintOfUnlinked handles an event on the connection of an instance whose socket was removed, if in is one. It watches the process, whose
// end explains the removal. The event itself proves nothing, because a plugin may close an idle connection at any time.
func (m *Machine) hintOfUnlinked(in *instance) {
	if m.unlinked[in] {
		m.do(WatchProcess{in.ref, in.peer})
	}
}

// unwatchUnlinked ends the watch of an instance whose socket was removed, if there is one.
func (m *Machine) unwatchUnlinked(in *instance) {
	if in == nil || !m.unlinked[in] {
		return
	}
	delete(m.unlinked, in)
	m.touch(in)
	m.robbed.forget(func(o remnant) bool { return o.in == in })
	m.stop(in, Rob)
	m.do(Unwatch{in.ref, Registration}, UnwatchProcess{in.ref})
}

// isReused reports whether a newer socket has the inode number of an instance's socket, which therefore no process has open any more.
func (m *Machine) isReused(in *instance) bool {
	own := in.info.Socket
	for _, o := range m.byRef {
		if s := o.info.Socket; own.Inode != 0 && s.Inode == own.Inode && s.Device == own.Device && s.Birth > own.Birth {
			return true
		}
	}
	return false
}

// seek requests a check whether an instance still listens on its removed socket, unless its plugin has another instance. The system
// identifies the socket only by its inode number.
func (m *Machine) seek(in *instance) {
	if m.isReused(in) {
		m.unwatchUnlinked(in)
		return
	}
	if l := m.lanes[in.announced.PluginName()]; l != nil && !m.isRobbed(in) {
		for _, o := range l.members {
			if o.phase != Gone && !o.barred {
				m.unwatchUnlinked(in)
				return
			}
		}
	}
	m.do(Seek{in.ref, in.info.Socket, in.peer})
}

// sought handles the result of seek. If the instance still listens, it is checked again later, because there is no event when it stops.
func (m *Machine) sought(in *instance, listens bool) {
	switch {
	case !m.unlinked[in]:
		return
	case !listens:
		m.unwatchUnlinked(in)
		return
	case !m.isRobbed(in):
		m.reportRobbed(in)
	}
	if m.unlinked[in] { // it was not removed because of a limit
		m.set(in, Rob, m.probePause())
	}
}

func (m *Machine) isRobbed(in *instance) bool {
	return slices.ContainsFunc(m.robbed, func(o remnant) bool { return o.in == in })
}

// reportRobbed reports that an instance whose socket was removed still serves. It is listed until it stops or its name is registered.
func (m *Machine) reportRobbed(in *instance) {
	message := fmt.Sprintf("its socket is gone, and process %d still serves on it: if the process is not exiting, another program removed "+
		"the socket; restart the plugin, which creates a new socket, and check who may write to the directory", in.peer.PID)
	m.emit(plugin.EventUnlinked, in, message)
	status := m.status(in)
	status.State, status.Since, status.LastError = plugin.StateUnlinked, m.Now, message
	status.Current, status.Instance, status.RegisteredAt = false, "", time.Time{}
	for _, forgotten := range m.robbed.keep(remnant{in, in.account, status}) {
		m.unwatchUnlinked(forgotten.in)
	}
}

// Refusals describes the last refusal of each name that has not been registered since and whose plugin is gone or now announces something
// else: each with the state "refused" and the reason as its LastError. They are sorted by type and name, the newest of each first.
func (m *Machine) Refusals() []plugin.Status {
	named := make(map[plugin.Name]bool, len(m.refusals))
	for _, o := range m.refusals {
		named[o.status.PluginName()] = true
	}
	type place struct{ ptype, name, socket string }
	present := map[place]string{}
	for _, s := range m.Plugins(func(k plugin.Name) bool { return named[k] }) {
		present[place{s.Type, s.Name, s.SocketPath}] = s.LastError
	}
	var all []plugin.Status
	for _, o := range slices.Backward(m.refusals) {
		s := o.status
		shown, there := present[place{s.Type, s.Name, s.SocketPath}]
		if !there || !strings.HasPrefix(shown, strings.TrimSuffix(s.LastError, "…")) {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b plugin.Status) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return all
}
