package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

// answerTimeout bounds the calls that a daemon answers at once. Only one that hangs does not.
const answerTimeout = 10 * time.Second

func answerInTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, answerTimeout)
}

// addControlSocket adds the flag that names the daemon's control socket.
func addControlSocket(cmd *cobra.Command, paths paths) *string {
	return cmd.Flags().String("control-socket", paths.controlSocket,
		"path of the daemon's control socket; the default can be set with "+controlSocketEnv)
}

// connect returns a client of the daemon that the flag names. It does not connect yet.
func connect(cmd *cobra.Command, socket string) (*client.Client, error) {
	if socket == "" {
		return nil, wrongUsage(cmd, "no control socket is known: name one with --control-socket or %s", controlSocketEnv)
	}
	return client.New(socket), nil
}
