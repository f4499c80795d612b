package cli

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/client"
)

const (
	// progressAfter is how long an operation takes before anything is shown of it, progressEvery how often that is renewed.
	progressAfter = 500 * time.Millisecond
	progressEvery = time.Second
)

// progress shows, on a terminal and nowhere else, for how long an operation has been going on, and what now says of it. The caller calls
// done when the operation has ended, which takes the line away.
func progress(ctx context.Context, w io.Writer, now func(context.Context) string) (done func()) {
	if terminalOf(w).width == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var showing sync.WaitGroup
	showing.Go(func() {
		began := time.Now()
		next := time.NewTimer(progressAfter)
		defer next.Stop()
		shown := false
		for {
			select {
			case <-ctx.Done():
				if shown {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			case <-next.C:
			}
			screen := terminalOf(w)
			line := fmt.Sprintf("%s  %s", short(time.Since(began)), now(ctx))
			fmt.Fprint(w, "\r\x1b[K"+screen.paint(truncate(line, screen.width-1), faint))
			shown = true
			next.Reset(progressEvery)
		}
	})
	return func() {
		cancel()
		showing.Wait()
	}
}

// presentState says in which state a plugin is.
func presentState(ctx context.Context, c *client.Client, ptype, name string) string {
	instances, err := c.Get(ctx, ptype, name)
	if err != nil {
		return pluginID(ptype, name) + " is not known"
	}
	text := pluginID(ptype, name) + " is " + escape(instances[0].State)
	if instances[0].LastError != "" {
		text += ": " + escape(instances[0].LastError)
	}
	return text
}
