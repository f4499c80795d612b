package sdk

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"google.golang.org/grpc"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk/internal/launched"
)

// Run calls run with a context that ends when the plugin must stop: with ctx, on SIGTERM or SIGINT, or when the host that launched it
// closes standard input. It returns run's error.
//
// [Serve] does this on its own. Wrap it in Run if something else must end with the plugin, such as long-lived streams; use Run alone for
// launched plugins that serve nothing.
func Run(ctx context.Context, run func(ctx context.Context) error) error {
	if run == nil {
		return errors.New("cannot run a plugin: the function of Run is nil")
	}
	return runArmed(ctx, func(ctx context.Context, arm func()) error {
		arm()
		return run(ctx)
	})
}

// runArmed is Run without signal handling until run calls arm: before that, a signal ends the process, as it does before main. Installing
// the handler starts two threads and would double the time until a plugin serves. Call arm before creating anything that must be cleaned
// up. runArmed is not safe for concurrent use.
func runArmed(ctx context.Context, run func(ctx context.Context, arm func()) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var stop context.CancelFunc
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	arm := sync.OnceFunc(func() {
		var signalled context.Context
		signalled, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(signalled, func() { cancel(context.Cause(signalled)) })
	})
	session, err := launched.From(ctx)
	if err != nil {
		return err
	}
	return session.Run(ctx, func(ctx context.Context) error { return run(ctx, arm) })
}

// Logger returns a logger of the given level (nil: info) that writes JSON lines to standard error. The host that launched the plugin reads
// them as records with level, time and attributes; keys inside groups are joined with dots. The host cuts long lines, and drops lines above
// its rate.
//
// Logger, Host and ListMetadata take any context; in tests with sdk/sdktest it must derive from the context of the test's plugin. In a
// launched process the first call of any of them reads the handshake from standard input.
func Logger(ctx context.Context, level slog.Leveler) *slog.Logger {
	session, _ := launched.From(ctx) // the error is that of Serve or Run
	return slog.New(session.LogHandler(level))
}

// Host returns a connection to the host that launched the plugin, for the services that the host grants. Each call carries the plugin's
// ticket. Host does not block; the first call connects. The connection is closed when [Serve] or [Run] returns. Without a host the error is
// [ErrNotLaunched].
func Host(ctx context.Context) (grpc.ClientConnInterface, error) {
	session, err := launched.From(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok := session.Handshake(); !ok {
		return nil, ErrNotLaunched
	}
	return session.Conn()
}

// ListMetadata lists the metadata of a package instance, newest first, which the host fetches; with keys, only theirs. Pages are fetched as
// the loop proceeds. An error ends the listing.
func ListMetadata(ctx context.Context, pin plugin.Pin, keys ...string) iter.Seq2[plugin.Metadata, error] {
	return func(yield func(plugin.Metadata, error) bool) {
		conn, err := Host(ctx)
		if err != nil {
			yield(plugin.Metadata{}, err)
			return
		}
		request := &pluginv1.ListMetadataRequest{
			Pin:  &pluginv1.Pin{PackageName: pin.PackageName, InstanceId: pin.InstanceID},
			Keys: keys,
		}
		for {
			page, err := pluginv1.NewHostClient(conn).ListMetadata(ctx, request)
			if err != nil {
				yield(plugin.Metadata{}, err)
				return
			}
			for _, m := range page.Metadata {
				if !yield(fromProto(m), nil) {
					return
				}
			}
			if page.NextPageToken == "" {
				return
			}
			if page.NextPageToken == request.PageToken {
				yield(plugin.Metadata{}, errors.New("the host's listing does not advance"))
				return
			}
			request.PageToken = page.NextPageToken
		}
	}
}

func fromProto(m *pluginv1.Metadata) plugin.Metadata {
	out := plugin.Metadata{
		Key: m.Key, Value: m.Value, ContentType: m.ContentType, Fingerprint: m.Fingerprint, AttachedBy: m.AttachedBy,
	}
	if m.AttachedTime.CheckValid() == nil {
		out.AttachedAt = m.AttachedTime.AsTime()
	}
	return out
}
