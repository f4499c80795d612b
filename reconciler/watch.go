package reconciler

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"strings"
	"time"
)

// probeInterval bounds how long the death of a plugin goes unnoticed whose process cannot be watched.
const probeInterval = 5 * time.Second

// watch has the death of a plugin noticed: through a hint, or with a connect now and then where there can be none. It takes the connection
// over. mu is held.
func (r *Reconciler) watch(in *instance, conn Conn) {
	if in.unwatch != nil {
		in.unwatch()
	}
	stop, err := conn.Watch(r.hint(in))
	if err != nil {
		r.checkLater(in)
		return
	}
	in.unwatch = stop
}

// hint returns a function that has an instance checked.
func (r *Reconciler) hint(in *instance) func() {
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.post(func(ctx context.Context) { r.check(ctx, in) })
	}
}

// checkLater arranges a check of an instance. mu is held.
func (r *Reconciler) checkLater(in *instance) {
	wait := probeInterval/2 + mathrand.N(probeInterval/2)
	timer := r.after(wait, func(ctx context.Context) { r.check(ctx, in) })
	in.unwatch = func() { timer.Stop() }
}

// check asks whether anybody accepts on the socket of an instance. A process that ended may have left its listening socket to another
// one, and a connection may be closed for any reason, so only a refused connect proves that the plugin is gone. mu is held.
func (r *Reconciler) check(ctx context.Context, in *instance) {
	if in.gone || in.unwatch == nil {
		return
	}
	if in.checking {
		// What is being found out may be older than this hint.
		in.recheck = true
		return
	}
	in.checking = true
	path := in.info.SocketPath
	timeout := r.timeouts(in.announced.Type).Dial
	r.spawn(func() {
		probeCtx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		stop, err := r.cfg.Transport.Probe(probeCtx, path, r.hint(in))
		r.mu.Lock()
		defer r.mu.Unlock()
		in.checking = false
		if in.gone || in.unwatch == nil || ctx.Err() != nil {
			if stop != nil {
				stop()
			}
			return
		}
		if err != nil && path == in.info.SocketPath && r.cfg.Transport.Refused(err) {
			r.lost(ctx, in, connectError(path, err))
			return
		}
		in.unwatch()
		if stop == nil {
			r.checkLater(in)
		} else {
			in.unwatch = stop
		}
		if in.recheck {
			in.recheck = false
			r.check(ctx, in)
		}
	})
}

func newInstanceID() string {
	return strings.ToLower(rand.Text()[:16])
}
