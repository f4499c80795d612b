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

// watch has the end of the process behind an instance noticed, through conn if the kernel shows the process, with a connect now and
// then otherwise. mu is held.
func (r *Reconciler) watch(in *instance, conn Conn) {
	if in.unwatch != nil {
		in.unwatch()
	}
	stop, err := conn.WatchExit(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.post(func(ctx context.Context) { r.check(ctx, in) })
	})
	if err != nil {
		r.checkLater(in)
		return
	}
	in.unwatch = stop
}

// checkLater arranges a check of an instance. mu is held.
func (r *Reconciler) checkLater(in *instance) {
	wait := probeInterval/2 + mathrand.N(probeInterval/2)
	timer := r.after(wait, func(ctx context.Context) { r.check(ctx, in) })
	in.unwatch = func() { timer.Stop() }
}

// check asks whether anybody accepts on the socket of an instance. A process that ended may have left its listening socket to another
// one, so only a refused connect proves that the plugin is gone. mu is held.
func (r *Reconciler) check(ctx context.Context, in *instance) {
	if in.gone || in.unwatch == nil {
		return
	}
	path := in.info.SocketPath
	r.spawn(func() {
		probeCtx, cancel := context.WithTimeout(ctx, r.cfg.Timeouts.Dial)
		defer cancel()
		err := r.cfg.Transport.Probe(probeCtx, path)
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case in.gone || ctx.Err() != nil || in.unwatch == nil:
		case err != nil && path == in.info.SocketPath && r.cfg.Transport.Refused(err):
			r.lost(ctx, in, err)
		default:
			in.unwatch()
			r.checkLater(in)
		}
	})
}

func newInstanceID() string {
	return strings.ToLower(rand.Text()[:16])
}
