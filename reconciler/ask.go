package reconciler

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	defaultWalks = 16
	// slotHold is how long a walk that waits keeps its slot.
	slotHold = 25 * time.Millisecond
	// A socket on which its plugin is about to listen is dialled again refusedTries times without a pause, because bind and listen are
	// mostly some microseconds apart, and then with a refusedPause in between; a shorter one takes as long.
	refusedTries = 16
	refusedPause = time.Millisecond
)

// ask has the plugin behind an instance say who it is, as soon as a slot is free. mu is held.
func (r *Reconciler) ask(ctx context.Context, in *instance) {
	if in.gone || in.asking || in.settling || in.walking || in.ready() {
		return
	}
	in.stopRetry()
	in.asking = true
	r.begin(in)
	if in.state != StateRestored {
		in.progress(StateConnecting)
	}
	if in.attempts == 0 && in.lane != nil {
		r.decide(in, answerWindow)
	}
	r.queue = append(r.queue, in)
	r.dispatch(ctx)
}

// decided takes over that an instance either has answered or has had its moment: whoever waited for it goes on. mu is held.
func (r *Reconciler) decided(ctx context.Context, in *instance) {
	in.deciding = false
	if in.lane != nil {
		r.kick(ctx, in.lane)
	}
	waited := in.replaces
	in.replaces = nil
	for _, replaced := range waited {
		if l := replaced.lane; l != nil {
			r.kick(ctx, l)
		}
	}
}

// dispatch starts walks while slots are free. mu is held.
func (r *Reconciler) dispatch(ctx context.Context) {
	for r.free > 0 && len(r.queue) > 0 && !r.stopped {
		in := r.queue[0]
		r.queue[0] = nil
		r.queue = r.queue[1:]
		if in.gone || !in.asking {
			continue
		}
		r.free--
		askCtx, cancel := context.WithCancel(in.traced(ctx))
		in.cancel = cancel
		path := in.info.SocketPath
		timeouts := r.timeouts(in.announced.Type)
		fresh := in.attempts == 0 && isFresh(in.info.Socket)
		r.spawn(func() {
			defer cancel()
			giveBack := r.giveBackSlot(ctx)
			defer giveBack()
			conn, info, err := r.interview(askCtx, path, fresh, timeouts, giveBack)
			r.answered(ctx, in, path, conn, info, err)
		})
	}
}

// isFresh says that a socket was made just now, or that this cannot be told. A birth in the future is from before a step of the wall clock.
func isFresh(id cache.SocketID) bool {
	return id.Birth == 0 || time.Since(time.Unix(0, id.Birth)).Abs() < answerWindow
}

// giveBackSlot returns a function that gives a slot back, once; after slotHold it is given back anyway.
func (r *Reconciler) giveBackSlot(ctx context.Context) (giveBack func()) {
	done := false
	release := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !done {
			done = true
			r.free++
			r.dispatch(ctx)
		}
	}
	timer := time.AfterFunc(slotHold, release)
	return func() {
		timer.Stop()
		release()
	}
}

// interview dials a socket and asks who is there. With an error there may be a connection and what was announced on it. A socket exists a
// moment before its plugin listens on it: as long as it is fresh, a refused dial is repeated. waits is called before it waits for that.
func (r *Reconciler) interview(ctx context.Context, path string, fresh bool, timeouts Timeouts, waits func()) (Conn, Info, error) {
	conn, err := r.reach(ctx, path, fresh, timeouts.Dial, waits)
	if err != nil {
		return nil, Info{}, err
	}
	ctx, done := r.step(ctx, "GetInfo")
	callCtx, cancel := context.WithTimeout(ctx, timeouts.GetInfo)
	defer cancel()
	info, err := conn.GetInfo(callCtx)
	done(err)
	if err != nil {
		err = fmt.Errorf("GetInfo on %s failed: %w", path, err)
	}
	return conn, info, err
}

// reach dials a socket, again and again for a moment if that is fresh.
func (r *Reconciler) reach(ctx context.Context, path string, fresh bool, timeout time.Duration, waits func()) (_ Conn, err error) {
	ctx, done := r.step(ctx, "connect")
	defer func() { done(err) }()
	began := time.Now()
	conn, err := r.dial(ctx, path, timeout)
	for tries := 0; err != nil && fresh && r.cfg.Transport.Refused(err); tries++ {
		// The last dial begins after the window, however late a busy machine has this goroutine go on.
		fresh = time.Since(began) < answerWindow
		if tries < refusedTries {
			runtime.Gosched()
			conn, err = r.dial(ctx, path, timeout)
			continue
		}
		waits()
		pause := time.NewTimer(refusedPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil, ctx.Err()
		case <-pause.C:
		}
		conn, err = r.dial(ctx, path, timeout)
	}
	if err != nil {
		return nil, connectError(path, err)
	}
	return conn, nil
}

func connectError(path string, err error) error {
	return fmt.Errorf("cannot connect to %s: %w", path, err)
}

func (r *Reconciler) dial(ctx context.Context, path string, timeout time.Duration) (Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return r.cfg.Transport.Dial(ctx, path)
}

// answered takes over what an instance said of itself and, if its lane rests, runs the lane.
func (r *Reconciler) answered(ctx context.Context, in *instance, path string, conn Conn, info Info, err error) {
	r.mu.Lock()
	in.asking = false
	in.cancel = nil
	l := r.enter(ctx, in, path, conn, info, err)
	run := l != nil && !l.running
	if run {
		l.running = true
	}
	if !in.asking {
		r.decided(ctx, in)
	}
	r.mu.Unlock()
	if run {
		r.run(ctx, l)
	}
}

// refusedFor takes over what an instance is refused for, so that people find it by its name. Whose it is counts only for one that stands
// for nothing yet. mu is held.
func (r *Reconciler) refusedFor(in *instance, info Info, account trust.Account) {
	in.refused = r.cfg.Bounds.naming(info)
	if in.lane == nil && account.Known {
		in.account = account
	}
}

// enter puts an instance that has answered into its lane, which it returns; nil if it has none. mu is held.
func (r *Reconciler) enter(ctx context.Context, in *instance, path string, conn Conn, info Info, err error) *lane {
	var account trust.Account
	if conn != nil && (in.gone || ctx.Err() != nil || err != nil) {
		account = conn.Account()
		r.closeConn(conn)
	}
	switch {
	case in.gone || ctx.Err() != nil:
		return nil
	case err != nil && path != in.info.SocketPath:
		// It was dialled where it is no longer.
		r.ask(ctx, in)
		return nil
	case err != nil && in.lane != nil && r.cfg.Transport.Refused(err):
		r.lost(ctx, in, path, err)
		return nil
	case err != nil:
		if _, distrusted := errors.AsType[*trust.Refusal](err); distrusted {
			in = r.disown(ctx, in, err)
			r.refusedFor(in, info, account)
		}
		r.failed(in, err)
		return nil
	}
	ignored := r.ignores(info.Type)
	if invalid := r.cfg.Bounds.check(info); invalid != nil {
		in.unclaimed = false // It is not for want of a handler that it has to be asked again.
		r.refusedFor(in, info, conn.Account())
		if ignored {
			r.closeConn(conn)
			r.failed(in, invalid)
		} else {
			r.reject(ctx, in, conn, invalid)
		}
		return nil
	}
	key := laneKey{info.Type, info.Name}
	switch {
	case in.restored != nil && (in.restored.Peer == Peer{} || in.restored.Peer != conn.Peer()):
		in = r.reborn(ctx, in, "another process serves its socket since the restart")
	case in.lane != nil && in.lane.key != key:
		in = r.reborn(ctx, in, fmt.Sprintf("its socket now announces %s/%s", info.Type, info.Name))
	}
	l := r.lane(key)
	refused := r.bars(l, in, conn.Account())
	if refused != nil {
		in = r.disown(ctx, in, refused)
	}
	in.restored = nil
	in.unclaimed, in.judgeAnew = false, false
	in.announced, in.refused = info, Info{}
	in.peer, in.account = conn.Peer(), conn.Account()
	if in.lane == nil {
		r.yield(in, key)
		l.join(in)
	}
	if in.barred = refused != nil; in.barred && ignored {
		in.unclaimed = true
		r.ignore(in, conn)
		return nil
	}
	if in.barred {
		r.reject(ctx, in, conn, refused)
		return nil
	}
	in.conn = conn
	in.progress(StateWaiting)
	return l
}
