package demo

import (
	"context"
	"io"
	"strings"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// PluginType is the type of the plugins in the demo.
const PluginType = "ExamplePlugin"

// Plugin serves an example plugin on a socket until ctx is done. The versions, separated by commas, are those of its example services.
func Plugin(ctx context.Context, name, socket, versions string) error {
	services := strings.Split(versions, ",")
	p := pluginwatcher.NewTestExamplePlugin(name, PluginType, socket, services...)
	if err := p.Serve(services...); err != nil {
		return err
	}
	<-ctx.Done()
	return p.Stop()
}

// UntilClosed returns a context that is cancelled when ctx is done or stdin is closed.
func UntilClosed(ctx context.Context, stdin io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return ctx, cancel
}
