package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/trust"
)

// unlinkedWindow is how long a plugin whose socket is gone may take to end, or to make another one, before somebody else is held to have
// removed the socket.
const unlinkedWindow = 5 * time.Second

// bars says why an instance may not register what it announced; nil if it may. A name that it stands for already is its own. mu is held.
func (r *Reconciler) bars(l *lane, in *instance, account trust.Account) error {
	if r.cfg.Trust == nil {
		return nil
	}
	if err := r.cfg.Trust.Type(l.key.ptype, account); err != nil || in.lane == l && !in.barred {
		return err
	}
	for _, m := range l.members {
		if m == in || m.gone || !m.claims() {
			continue
		}
		if err := r.cfg.Trust.Supersede(l.key.ptype, l.key.name, account, m.account); err != nil {
			return err
		}
	}
	return nil
}

// disown returns the instance to go on with when one is not trusted any more: a new one, if it was registered. mu is held.
func (r *Reconciler) disown(ctx context.Context, in *instance, refused error) *instance {
	if in.recorded || in.held() {
		return r.reborn(ctx, in, refused.Error())
	}
	return in
}

// claims says that the name of the lane is the instance's, or is about to be.
func (in *instance) claims() bool { return in.recorded || in.held() || in.ready() || in.walking }

// leave has an instance leave its lane. Those who were barred from it ask again. mu is held.
func (r *Reconciler) leave(ctx context.Context, l *lane, in *instance) {
	l.leave(in)
	for _, m := range l.members {
		if m.barred && !m.gone {
			r.ask(ctx, m)
		}
	}
}

// distrusted takes over that an error is a refusal for want of trust, and says whether it is. mu is held.
func (r *Reconciler) distrusted(err error) bool {
	refusal, is := errors.AsType[*trust.Refusal](err)
	if is {
		r.cfg.Refused(refusal.Reason)
	}
	return is
}

// watchUnlinked watches a registered instance whose socket was removed a moment longer: one that serves on was robbed of it. mu is held.
func (r *Reconciler) watchUnlinked(in *instance) {
	w := &in.registrationWatch
	// What is being checked has given a hint that it ends, and gives no other.
	if in.gone || !in.recorded || w.unwatch == nil || w.blind || w.checking {
		return
	}
	unwatch := w.unwatch
	w.unwatch = nil
	timer := r.after(unlinkedWindow, func(context.Context) { r.tellRobbed(in) })
	r.unlinked[in] = func() {
		timer.Stop()
		unwatch()
	}
}

// hintOfUnlinked takes over that something happened to an instance whose socket was removed, if in is one: unless its process lives on, it
// ended by itself. A plugin may close an idle connection at any time. mu is held.
func (r *Reconciler) hintOfUnlinked(in *instance) {
	end := r.unlinked[in]
	if end == nil {
		return
	}
	stop, err := r.cfg.Transport.WatchProcess(in.peer, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.post(func(context.Context) { r.unwatchUnlinked(in) })
	})
	if err != nil {
		r.unwatchUnlinked(in)
		return
	}
	r.unlinked[in] = func() {
		end()
		stop()
	}
}

// unwatchUnlinked ends the watch of an instance whose socket was removed, if there is one. mu is held.
func (r *Reconciler) unwatchUnlinked(in *instance) {
	if end := r.unlinked[in]; end != nil {
		delete(r.unlinked, in)
		r.robbed.forget(func(m remnant) bool { return m.in == in })
		end()
	}
}

// tellRobbed tells that an instance whose socket was removed still serves, unless its plugin has another one. It is listed until it ends,
// or its name is registered. mu is held.
func (r *Reconciler) tellRobbed(in *instance) {
	if r.unlinked[in] == nil {
		return
	}
	if l := r.lanes[laneKey{in.announced.Type, in.announced.Name}]; l != nil {
		for _, m := range l.members {
			if !m.gone && !m.barred {
				r.unwatchUnlinked(in)
				return
			}
		}
	}
	message := fmt.Sprintf("its socket is gone, and process %d still serves on it: if it is not about to end, somebody removed the socket "+
		"who may write to the directory; restart the plugin, which makes the socket anew", in.peer.PID)
	r.log.Warn("socket of a living plugin removed", "type", in.announced.Type, "name", in.announced.Name, "socket", in.info.SocketPath,
		"pid", in.peer.PID)
	r.observe(EventUnlinked, in, message)
	status := in.status()
	status.State, status.Since, status.LastError = StateUnlinked, time.Now(), message
	status.Current, status.Instance, status.RegisteredAt = false, "", time.Time{}
	for _, forgotten := range r.robbed.keep(remnant{in, laneKey{status.Type, status.Name}, in.account, status}) {
		r.unwatchUnlinked(forgotten.in)
	}
}
