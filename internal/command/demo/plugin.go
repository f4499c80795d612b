package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// pluginType is the type of the plugins in the demo.
const pluginType = "ExamplePlugin"

// Plugin serves an example plugin on a socket until ctx ends or stdin is closed. The versions, separated by commas, are those of the
// example services that it offers.
func Plugin(ctx context.Context, stdin io.Reader, name, socket, versions string) error {
	services := strings.Split(versions, ",")
	p := pluginwatcher.NewTestExamplePlugin(name, pluginType, socket, services...)
	if err := p.Serve(services...); err != nil {
		return err
	}
	awaitEnd(ctx, stdin)
	return p.Stop()
}

// awaitEnd returns when ctx ends or stdin is closed.
func awaitEnd(ctx context.Context, stdin io.Reader) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, stdin)
	}()
	select {
	case <-ctx.Done():
	case <-closed:
	}
}

// report is one line of what the daemon tells the demo: an event, or the answer to a request.
type report struct {
	// Event, Name, Instance and Message are those of a patchbay.Event.
	Event, Name, Instance, Message string `json:",omitempty"`
	// Answer is the request that this line answers.
	Answer string `json:",omitempty"`
	// Calls and Failed count the calls that were made of plugins.
	Calls, Failed int    `json:",omitempty"`
	Error         string `json:",omitempty"`
}

func (r report) err() error {
	if r.Error == "" {
		return nil
	}
	return errors.New(r.Error)
}

func (r report) String() string { return fmt.Sprintf("%s %s", r.Event, r.Name) }
