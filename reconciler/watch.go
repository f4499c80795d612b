package reconciler

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
)

// probeInterval bounds how long the death of a plugin goes unnoticed whose process cannot be watched.
const probeInterval = 5 * time.Second

// watch is the watch for the end of who accepts on one socket of an instance. Guarded by Reconciler.mu.
type watch struct {
	// unwatch ends it; nil if nothing is watched.
	unwatch func()
	// blind: nothing is watched, and somebody looks now and then.
	blind bool
	// checking: it is being found out whether anybody accepts; recheck: a hint came meanwhile.
	checking, recheck bool
}

// end ends the watch.
func (w *watch) end() {
	if w.unwatch != nil {
		w.unwatch()
		w.unwatch = nil
	}
}

// begin puts another watch into the place of this one.
func (w *watch) begin(unwatch func()) {
	w.end()
	w.blind = false
	w.unwatch = unwatch
}

// path returns the path of the socket that is watched.
func (in *instance) path(w *watch) string {
	if w == &in.endpointWatch {
		return in.endpoint()
	}
	return in.info.SocketPath
}

// watchRegistration has the death of a plugin noticed: through a hint, or with a connect now and then where there can be none. It takes the
// connection over. mu is held.
func (r *Reconciler) watchRegistration(in *instance, conn Conn) {
	w := &in.registrationWatch
	w.end()
	stop, err := conn.Watch(r.hint(in, w))
	if err != nil {
		r.checkLater(in, w, func() {})
		return
	}
	w.begin(stop)
}

// watchEndpoint has it noticed that nobody accepts on the endpoint any more, if the handler asked for that. mu is held.
func (r *Reconciler) watchEndpoint(ctx context.Context, in *instance) {
	w := &in.endpointWatch
	if !in.registration.WatchEndpoint || in.endpoint() == in.info.SocketPath {
		w.end()
		return
	}
	w.begin(func() {})
	r.check(ctx, in, w)
}

// endpointAnswers says whether anybody accepts on the endpoint of an instance that is to be registered, if its handler asked for that to be
// watched when the instance was registered last: a handler need not find out for itself what is known to be so.
func (r *Reconciler) endpointAnswers(ctx context.Context, l *lane, in *instance, endpoint string) error {
	r.mu.Lock()
	matters := in.registration.WatchEndpoint && l.held != in && endpoint != in.info.SocketPath
	timeout := r.timeouts(in.announced.Type).Dial
	r.mu.Unlock()
	if !matters {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop, err := r.cfg.Transport.Probe(ctx, endpoint, func() {})
	if stop != nil {
		stop()
	}
	if err == nil || !r.cfg.Transport.Refused(err) {
		return nil
	}
	return notYet{connectError(endpoint, err)}
}

// notYet is an error that is no reason to tell the plugin off.
type notYet struct{ error }

func (e notYet) Unwrap() []error { return []error{e.error, cache.ErrRetry} }

// hint returns a function that has a socket of an instance checked.
func (r *Reconciler) hint(in *instance, w *watch) func() {
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.post(func(ctx context.Context) { r.check(ctx, in, w) })
	}
}

// checkLater arranges a check of a socket of an instance, beside the watch that stop ends. mu is held.
func (r *Reconciler) checkLater(in *instance, w *watch, stop func()) {
	wait := probeInterval/2 + mathrand.N(probeInterval/2)
	timer := r.after(wait, func(ctx context.Context) { r.check(ctx, in, w) })
	w.begin(func() {
		timer.Stop()
		stop()
	})
	w.blind = true
}

// check asks whether anybody accepts on a socket of an instance. A process that ended may have left its listening socket to another
// one, and a connection may be closed for any reason, so only a refused connect proves that the plugin is gone. mu is held.
func (r *Reconciler) check(ctx context.Context, in *instance, w *watch) {
	if in.gone || w.unwatch == nil {
		r.hintOfUnlinked(in)
		return
	}
	if w.checking {
		// What is being found out may be older than this hint.
		w.recheck = true
		return
	}
	w.checking = true
	path := in.path(w)
	timeout := r.timeouts(in.announced.Type).Dial
	r.spawn(func() {
		probeCtx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		stop, err := r.cfg.Transport.Probe(probeCtx, path, r.hint(in, w))
		r.mu.Lock()
		defer r.mu.Unlock()
		w.checking = false
		if in.gone || w.unwatch == nil || ctx.Err() != nil {
			if stop != nil {
				stop()
			}
			return
		}
		if err != nil && path == in.path(w) && r.cfg.Transport.Refused(err) {
			r.lost(ctx, in, path, connectError(path, err))
			return
		}
		switch {
		case stop == nil:
			r.checkLater(in, w, func() {})
		case w == &in.endpointWatch:
			// Nothing tells that a process which lives accepts there no more.
			r.checkLater(in, w, stop)
		default:
			w.begin(stop)
		}
		if w.recheck {
			w.recheck = false
			r.check(ctx, in, w)
		}
	})
}

func newInstanceID() string {
	return strings.ToLower(rand.Text()[:16])
}
