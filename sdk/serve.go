package sdk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
)

var (
	// ErrInUse is wrapped by the error of [Serve] if another process serves at the plugin's path: an older instance without [Plugin.TakeOver],
	// or another plugin.
	ErrInUse = errors.New("another process is listening")
	// ErrNotLaunched is wrapped by the errors of what needs a host if no host launched this process.
	ErrNotLaunched = errors.New("no host launched this process")
)

// RefusedError is returned by [Serve] if a host refused the plugin and that ended it.
type RefusedError struct {
	// Reason is what the host said.
	Reason string
}

func (e *RefusedError) Error() string { return "the host refused it: " + e.Reason }

// Serve serves the plugin until ctx ends, the process gets SIGTERM or SIGINT, or the host that launched it closes standard input. Then
// health turns NOT_SERVING, the socket is removed (if it is the one that Serve made), and calls in progress have [Plugin.Drain] to end. A
// requested stop is not an error. In the first tenth of a second a signal ends a launched plugin without draining, as it does before Serve;
// inside [Run] it does not.
//
// A stale socket at the plugin's path, left by a crash, is replaced. If another process serves there, the error wraps [ErrInUse], unless it
// is an older instance and [Plugin.TakeOver] is set. A take-over leaves no gap: the new instance serves, takes the path and, once the host
// has registered it, sends the old one SIGTERM, which then drains. If the host refuses the new instance, or it is stopped first, the old
// one gets its path back and continues; after a refusal, Serve returns a [*RefusedError]. The old instance must use this package too, in
// another process that the new one can see and signal.
//
// Serve blocks. When it returns, everything it started has ended, except handlers of calls that were cut off. It may be called concurrently
// for plugins with different paths.
func Serve(ctx context.Context, p Plugin) error {
	p, err := p.withDefaults()
	if err != nil {
		return err
	}
	return runArmed(ctx, func(ctx context.Context, arm func()) error {
		if err := serve(ctx, p, arm, Logger(ctx, nil)); err != nil {
			return fmt.Errorf("cannot serve plugin %s: %w", p, err)
		}
		return nil
	})
}

// armsAfter is the time from the start of serving until a launched plugin handles signals; before that a signal ends the process. A host
// stops a plugin by closing its standard input, so it does not need signals.
const armsAfter = 100 * time.Millisecond

func serve(ctx context.Context, p Plugin, arm func(), log *slog.Logger) error {
	status := &registration{plugin: p, log: log, registered: make(chan struct{}, 1), refused: make(chan string, 1)}
	server, err := newServer(ctx, p, status)
	if err != nil {
		return err
	}
	defer server.Stop()
	place, err := listen(ctx, p, arm)
	if err != nil {
		return err
	}
	status.itsOwn = place.placed != nil
	var serving sync.WaitGroup
	defer serving.Wait()
	served := make(chan error, 1)
	serving.Go(func() { served <- server.Serve(place) })

	reason := await(ctx, p, status, place, served, arm, log)
	// ctx may have ended, and the cleanup must still run.
	ctx = context.WithoutCancel(ctx)
	server.health.Shutdown()
	if err := place.leave(ctx); err != nil {
		log.Error("cannot clean up the plugin's socket", "error", err)
	}
	if !server.drain(p.Drain) {
		log.Warn("calls were still in progress and were aborted", "after", p.Drain)
	}
	return reason
}

// await blocks until the plugin has to stop. The error is nil if a stop was requested.
func await(
	ctx context.Context, p Plugin, status *registration, place *place, served <-chan error, arm func(), log *slog.Logger,
) error {
	arming := time.NewTimer(armsAfter)
	defer arming.Stop()
	var registered <-chan struct{} // both matter only to who takes over
	var handOver <-chan time.Time
	if place.predecessor != nil {
		timer := time.NewTimer(p.HandOver)
		defer timer.Stop()
		registered, handOver = status.registered, timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-arming.C:
			arm()
		case err := <-served:
			if err == nil {
				err = grpc.ErrServerStopped
			}
			return err
		case reason := <-status.refused:
			if p.ExitOnRefusal || place.predecessor != nil {
				return &RefusedError{Reason: reason}
			}
		case <-registered:
			registered = nil
			place.commit(ctx, log)
		case <-handOver:
			place.commit(ctx, log)
		}
	}
}
