package reconciler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
)

// restore takes over the instances from before a restart. It is called by New.
func (r *Reconciler) restore(records []Instance) {
	spacing := rankStep / uint64(len(records)+1)
	for i, record := range records {
		in := &instance{
			rank:         cmp.Or(record.Rank, uint64(len(records)-i)*spacing), // one without is older than all with one
			info:         cache.PluginInfo{SocketPath: record.SocketPath, Socket: record.Socket},
			source:       record.Source,
			announced:    Info{Type: record.Type, Name: record.Name, Endpoint: record.Endpoint, Versions: record.Versions},
			id:           record.ID,
			recorded:     true,
			listed:       record.Endpoint,
			registeredAt: record.RegisteredAt,
			account:      record.Account,
			registration: record.Registration,
			restored:     &record,
		}
		if record.Endpoint == record.SocketPath {
			in.announced.Endpoint = "" // it is wherever its socket is
		}
		r.lastRank = max(r.lastRank, in.rank)
		in.set(StateRestored)
		r.observe(EventRestored, in, "known from before the restart; checking whether it is alive")
		if _, known := r.restored[record.Socket]; known || record.Socket == (cache.SocketID{}) {
			// Of two records of one socket the one that was registered last counts.
			r.post(func(ctx context.Context) { r.went(ctx, in, "it cannot be told whether its socket is still the same") })
			continue
		}
		r.restored[record.Socket] = in
		key := laneKey{record.Type, record.Name}
		r.remembered[key] = append(r.remembered[key], remembered{in.rank, record.Socket.Birth})
	}
}

// apply takes changes of the desired state over. mu is held.
func (r *Reconciler) apply(ctx context.Context, changes []cache.Change) {
	present := make(map[uint64]bool, len(changes))
	for _, c := range changes {
		if c.Present {
			present[c.Info.Appearance] = true
		}
	}
	type move struct {
		in *instance
		to cache.PluginInfo
	}
	var moves []move
	for _, c := range changes {
		at := r.sockets[c.Path]
		if at != nil && c.Present && at.info.Appearance == c.Info.Appearance {
			continue
		}
		var in *instance
		appeared := false
		if c.Present {
			if in = r.appearances[c.Info.Appearance]; in != nil {
				moves = append(moves, move{in, c.Info})
			} else {
				in = r.appeared(c.Info)
				appeared = true
			}
		}
		if at != nil && !present[at.info.Appearance] {
			if in != nil {
				r.replace(at, in, appeared || in.asking)
				r.went(ctx, at, "its socket was replaced")
			} else {
				r.removed(ctx, at)
			}
		}
		if appeared {
			r.ask(ctx, in)
		}
	}
	// Sockets may have changed places, so all leave before any arrives.
	for _, m := range moves {
		if r.sockets[m.in.info.SocketPath] == m.in {
			delete(r.sockets, m.in.info.SocketPath)
		}
	}
	for _, m := range moves {
		r.moved(ctx, m.in, m.to)
	}
}

// replace notes that in stands at the path where at stood; deciding says that it may answer any moment. However long their handlers take,
// at is in the registry for that moment only. mu is held.
func (r *Reconciler) replace(at, in *instance, deciding bool) {
	at.replacement = in
	r.after(replaceWindow, func(ctx context.Context) { r.unrecord(ctx, at) })
	if deciding {
		in.replaces = append(in.replaces, at)
		r.decide(in, replaceWindow)
	}
}

// decide has others wait for an answer of the instance, for a moment. mu is held.
func (r *Reconciler) decide(in *instance, window time.Duration) {
	in.deciding = true
	r.after(window, func(ctx context.Context) { r.decided(ctx, in) })
}

// appeared returns the instance for a new appearance of a socket: a restored one or a new one. mu is held.
func (r *Reconciler) appeared(info cache.PluginInfo) *instance {
	in := r.restored[info.Socket]
	if in != nil {
		delete(r.restored, info.Socket)
		in.info = info
		r.lane(laneKey{in.announced.Type, in.announced.Name}).join(in)
		r.hideMoved(in)
	} else {
		in = &instance{info: info, source: r.cfg.Source(info.SocketPath), rank: r.newRank(info), found: !r.synced && info.Socket.Birth != 0}
		in.set(StateConnecting)
	}
	r.sockets[info.SocketPath] = in
	r.appearances[info.Appearance] = in
	return in
}

// rankStep lies between the ranks of appearances: room for those that yield, and enough ranks for a host's life. Ranks below it are none of
// an appearance, and not recorded.
const rankStep = 1 << 26

// newRank ranks an appearance in this process above all remembered instances. mu is held.
func (r *Reconciler) newRank(info cache.PluginInfo) uint64 {
	return r.lastRank + info.Appearance*rankStep
}

// remembered is the rank of an instance from before a restart, and when its socket was born.
type remembered struct {
	rank  uint64
	birth int64
}

// yield ranks an instance that was found behind those remembered of its name whose sockets were born after its own, and above the rest.
// It has no record, so most likely it rested behind them before the restart and was never registered. mu is held.
func (r *Reconciler) yield(in *instance, key laneKey) {
	if !in.found {
		return
	}
	in.found = false
	limit, below := in.rank, uint64(0)
	for _, known := range r.remembered[key] {
		if in.info.Socket.Birth < known.birth {
			limit = min(limit, known.rank)
		}
	}
	if limit == in.rank {
		return
	}
	if limit > rankStep {
		below = rankStep
	}
	for _, known := range r.remembered[key] {
		if known.rank < limit {
			below = max(below, known.rank)
		}
	}
	// The greater the appearance, the nearer to the limit. The room in between gets less with every restart; where there is none left, the
	// births decide.
	in.rank = limit - max((limit-below)/(in.info.Appearance+1), 1)
}

// moved takes over that a socket is in another place. A plugin whose endpoint is that socket is registered again there. mu is held.
func (r *Reconciler) moved(ctx context.Context, in *instance, to cache.PluginInfo) {
	if in.gone {
		return
	}
	judgedAnew := in.info.FoundInDeprecatedDir != to.FoundInDeprecatedDir
	turnedUp := in.missing != nil
	in.stopMissing()
	in.info = to
	r.sockets[to.SocketPath] = in
	if in.asking && in.cancel != nil {
		// It is being dialled where it is no longer; that ends, and it is asked again here.
		in.cancel()
	}
	if judgedAnew {
		in.judgeAnew = in.walking
	}
	if judgedAnew || turnedUp {
		r.ask(ctx, in)
	}
	if in.state == StateSuperseded {
		r.rests(in)
	}
	if in.lane != nil {
		r.kick(ctx, in.lane)
	}
}

// removed takes over that there is no socket any more. mu is held.
func (r *Reconciler) removed(ctx context.Context, in *instance) {
	if refused := r.cfg.Withdrawn(in.info.SocketPath); refused != nil {
		r.went(ctx, in, refused.Error())
		return
	}
	r.watchUnlinked(in)
	r.went(ctx, in, "its socket was removed")
}

// went takes over that an instance is gone. Its registry entry goes at once, unless it may be replaced at its path any moment; the
// handler's calls follow in the lane. mu is held.
func (r *Reconciler) went(ctx context.Context, in *instance, why string) {
	if in.gone {
		return
	}
	in.gone = true
	in.why = why
	r.end(in, ResultGone, nil)
	in.rest()
	if r.sockets[in.info.SocketPath] == in {
		delete(r.sockets, in.info.SocketPath)
	}
	if r.appearances[in.info.Appearance] == in {
		delete(r.appearances, in.info.Appearance)
	}
	l := in.lane
	if l == nil || l.held != in || !l.replaced(in) {
		r.unrecord(ctx, in)
	}
	if l != nil {
		r.kick(ctx, l)
	}
}

// lost takes over that nobody accepts on the socket, or the endpoint, of a plugin that had answered. mu is held.
func (r *Reconciler) lost(ctx context.Context, in *instance, path string, err error) {
	switch {
	case in.gone || in.state == StateUnreachable || in.missing != nil:
		return
	case errors.Is(err, fs.ErrNotExist) && path == in.info.SocketPath:
		// It was removed or renamed, and which of the two will be known in a moment.
		in.unwatch()
		in.missing = r.after(replaceWindow, func(ctx context.Context) {
			if in.missing != nil {
				r.giveUp(ctx, in, "its socket", err)
			}
		})
		return
	}
	in.rest()
	what := "its socket"
	if path != in.info.SocketPath {
		what = "its endpoint " + path
	}
	r.hide(in, fmt.Errorf("nobody accepts on %s any more: %w", what, err))
	if in.recorded && in.restored == nil && r.cfg.UnreachableGrace > 0 {
		in.set(StateUnreachable)
		in.lastErr = err
		in.retry = r.after(r.cfg.UnreachableGrace, func(ctx context.Context) { r.giveUp(ctx, in, what, err) })
		return
	}
	r.giveUp(ctx, in, what, err)
}

// giveUp lets go of an instance where nobody accepts on what, its socket or endpoint. As long as the socket exists it is tried with
// back-off, as a new instance. mu is held.
func (r *Reconciler) giveUp(ctx context.Context, in *instance, what string, err error) {
	if in.gone {
		return
	}
	fresh := r.reborn(ctx, in, "nobody accepts on "+what)
	fresh.attempts = 1
	fresh.lastErr = err
	fresh.toldText = err.Error()
	fresh.set(StateUnreachable)
	r.end(fresh, ResultFailed, err)
	r.retryLater(fresh)
}

// reborn ends an instance and begins a new one on the same socket, in the same rank. mu is held.
func (r *Reconciler) reborn(ctx context.Context, in *instance, why string) *instance {
	fresh := &instance{
		info: in.info, source: in.source, rank: in.rank, announced: in.announced, account: in.account, registration: in.registration,
	}
	fresh.set(StateConnecting)
	fresh.attempt, in.attempt = in.attempt, attempt{}
	r.went(ctx, in, why)
	r.sockets[in.info.SocketPath] = fresh
	r.appearances[in.info.Appearance] = fresh
	return fresh
}

// unrecord removes an instance that is gone from the registry: from what is given out at once, from the disk as soon as that can be
// done. mu is held.
func (r *Reconciler) unrecord(ctx context.Context, in *instance) {
	if !in.recorded {
		return
	}
	in.recorded = false
	ptype, name, id := in.announced.Type, in.announced.Name, in.id
	r.cfg.Registry.Unreachable(ptype, name, id, errors.New(in.why))
	r.observe(EventDeregistered, in, in.why)
	r.untilDone(ctx, "remove a plugin from the registry", in, func() error { return r.cfg.Registry.Remove(ptype, name, id) })
}

// untilDone does something to the registry again and again until it is on disk. If the reconciler ends before, the next start restores an
// instance that it finds dead. mu is held.
func (r *Reconciler) untilDone(ctx context.Context, what string, in *instance, do func() error) {
	ptype, name, id := in.announced.Type, in.announced.Name, in.id
	r.spawn(func() {
		for attempt := 1; ; attempt++ {
			err := do()
			if err == nil {
				return
			}
			if attempt == 1 {
				r.log.Error("cannot "+what+"; trying again", "type", ptype, "name", name, "instance", id, "error", err)
			}
			retry := time.NewTimer(backoff(attempt))
			select {
			case <-ctx.Done():
				retry.Stop()
				return
			case <-retry.C:
			}
		}
	})
}
