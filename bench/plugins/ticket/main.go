// Ticket is a plugin that serves nothing: it calls its host once, and waits for its end.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

func main() {
	if err := sdk.Run(context.Background(), run); err != nil {
		fmt.Fprintln(os.Stderr, "ticket:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	conn, err := sdk.Host(ctx)
	if err != nil {
		return err
	}
	// The host may end the plugin before it has answered.
	if _, err := v1beta1.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{}); err != nil && ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	return nil
}
