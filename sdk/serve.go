package sdk

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/sdk/internal/launched"
)

var (
	// ErrInUse is wrapped by the error of [Serve] if somebody else serves at the plugin's path: an older instance without
	// [Plugin.TakeOver], or another plugin.
	ErrInUse = sock.ErrInUse
	// ErrNotLaunched is wrapped by the errors of what needs a host if no host launched this process.
	ErrNotLaunched = launched.ErrNotLaunched
)

// RefusedError is returned by [Serve] if a host refused the plugin and that ended it.
type RefusedError struct {
	// Reason is what the host said.
	Reason string
}

func (e *RefusedError) Error() string { return "the host refused it: " + e.Reason }

// Serve serves the plugin until ctx ends, the process gets SIGTERM or SIGINT, or the host that launched it closes standard input. Then
// health turns NOT_SERVING, the socket is removed (if it is the one that Serve made), and calls in progress have [Plugin.Drain] to end. A
// stop that was asked for is no error.
//
// The socket at the plugin's path that nobody serves any more, from a crash, is replaced. One that somebody serves is an error that wraps
// [ErrInUse], unless it is that of an older instance and [Plugin.TakeOver] is set. Then there is never a moment in which nobody answers at
// the path: the new instance serves, takes the path, and when the host has registered it, it sends the old one SIGTERM, and the old one
// drains. If the host refuses it, or it is stopped before that, the old one gets its path back and serves on; after a refusal, Serve
// returns a [*RefusedError]. The old instance has to be served by this package too, in another process that the new one sees and may
// signal.
//
// Serve blocks, and all that it started has ended when it returns, but for handlers of calls that were cut off. It may be called at once
// for several plugins with paths of their own.
func Serve(ctx context.Context, p Plugin) error {
	p, err := p.withDefaults()
	if err != nil {
		return err
	}
	return Run(ctx, func(ctx context.Context) error {
		if err := serve(ctx, p, Logger(ctx, nil)); err != nil {
			return fmt.Errorf("cannot serve plugin %s: %w", p, err)
		}
		return nil
	})
}

func serve(ctx context.Context, p Plugin, log *slog.Logger) error {
	status := &registration{plugin: p, log: log, registered: make(chan struct{}, 1), refused: make(chan string, 1)}
	server, err := newServer(ctx, p, status)
	if err != nil {
		return err
	}
	defer server.Stop()
	place, err := listen(ctx, p)
	if err != nil {
		return err
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	served := make(chan error, 1)
	serving.Go(func() { served <- server.Serve(place) })

	reason := await(ctx, p, status, place, served, log)
	// The end of ctx is what brought the plugin here, and it still has to clean up.
	ctx = context.WithoutCancel(ctx)
	server.health.Shutdown()
	if err := place.leave(ctx); err != nil {
		log.Error("cannot clean up the plugin's socket", "error", err)
	}
	if !server.drain(p.Drain) {
		log.Warn("calls were still in progress and were cut off", "after", p.Drain)
	}
	return reason
}

// await returns when the plugin has to stop, and why; nil if it was asked to.
func await(
	ctx context.Context, p Plugin, status *registration, place *place, served <-chan error, log *slog.Logger,
) error {
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
