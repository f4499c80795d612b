package cli

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

// daemonPause is how long, on average, wait leaves a control socket alone at which it found no daemon. Nothing tells of a daemon that is
// about to start: the directory of its socket may not exist yet, and a socket that a killed one left refuses in silence.
const daemonPause = 50 * time.Millisecond

// awaitDaemon waits until there is a daemon, or ctx ends. Whatever else is wrong with it, the next call says.
func awaitDaemon(ctx context.Context, c *client.Client) {
	for {
		if _, err := c.Version(ctx); !errors.Is(err, client.ErrNotRunning) {
			return
		}
		pause := time.NewTimer(daemonPause/2 + rand.N(daemonPause))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

func newWaitCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait TYPE/NAME",
		Short: "Wait until a plugin is registered or deregistered.",
		Long: `Wait until a plugin is registered, or until no instance of it is registered any more, and exit with 0. It need not be known yet,
and the daemon need not run yet.
If that does not happen in time, the command says which state the plugin is in and exits with 1. It prints nothing else.

The type ends at the first slash; the name may have more.`,
		Example: `  # Start a driver and go on when it is registered.
  ./driver & patchbay wait CSIPlugin/hostpath.csi.k8s.io --timeout 10s

  # Remove it and go on when it is gone.
  kill %1; patchbay wait CSIPlugin/hostpath.csi.k8s.io --for deregistered`,
		Args: onePlugin,
	}
	socket := addControlSocket(cmd, paths)
	cmd.ValidArgsFunction = completePlugins(socket)
	goal := addChoice(cmd, "for", "", "what to wait for", string(client.GoalRegistered), string(client.GoalDeregistered))
	timeout := cmd.Flags().Duration("timeout", 30*time.Second, "how long to wait, for example 90s or 5m")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *timeout <= 0 {
			return wrongUsage(cmd, "--timeout %v is not a time to wait: give one above zero", *timeout)
		}
		c, err := socket.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		ptype, name := splitPlugin(args[0])
		defer progress(ctx, cmd.ErrOrStderr(), func(ctx context.Context) string { return presentState(ctx, c, ptype, name) })()
		awaitDaemon(ctx, c)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			// There is time left to say that there was no daemon.
			late, cancel := answerInTime(context.WithoutCancel(ctx))
			defer cancel()
			ctx = late
		}
		_, err = c.Wait(ctx, ptype, name, client.Goal(goal.value))
		return err
	}
	return cmd
}
