// Floor is each of the contestants that find plugins with well-known libraries and nothing else, and a process that does nothing.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/patchbay-dev/patchbay/bench/internal/manager"
)

var contestants = map[string]manager.Contestant{
	"floor":       floor(registerGRPC),
	"floor-http2": floor(registerHTTP2),
	"floor-raw":   floor(registerRaw),
	"idle":        runIdle,
}

func main() {
	if err := manager.Play(contestants); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runIdle is a Go process that does nothing.
func runIdle(ctx context.Context, _ string, j *manager.Journal) error {
	j.Ready()
	<-ctx.Done()
	return nil
}
