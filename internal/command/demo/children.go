package demo

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// PluginType is the type of the plugins in the demo.
const PluginType = "ExamplePlugin"

// Daemon is a daemon that the demo asks through its control socket.
type Daemon interface {
	// Run blocks until ctx ends.
	Run(ctx context.Context) error
	// Ready is closed when the control socket is served.
	Ready() <-chan struct{}
}

// Host runs a daemon until ctx ends or stdin is closed. It writes a line to stdout when the daemon is ready.
func Host(ctx context.Context, stdin io.Reader, stdout io.Writer, d Daemon) error {
	ctx, cancel := untilClosed(ctx, stdin)
	defer cancel()
	go func() {
		select {
		case <-d.Ready():
			_, _ = fmt.Fprintln(stdout, "ready") // a reader that is gone is noticed by the end of stdin
		case <-ctx.Done():
		}
	}()
	return d.Run(ctx)
}

// Plugin serves an example plugin on a socket until ctx ends or stdin is closed. The versions, separated by commas, are those of the
// example services that it offers.
func Plugin(ctx context.Context, stdin io.Reader, name, socket, versions string) error {
	ctx, cancel := untilClosed(ctx, stdin)
	defer cancel()
	services := strings.Split(versions, ",")
	p := pluginwatcher.NewTestExamplePlugin(name, PluginType, socket, services...)
	if err := p.Serve(services...); err != nil {
		return err
	}
	<-ctx.Done()
	return p.Stop()
}

// untilClosed returns a context that ends with ctx, or when stdin is closed.
func untilClosed(ctx context.Context, stdin io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return ctx, cancel
}
