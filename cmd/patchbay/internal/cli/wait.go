package cli

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// daemonPause is the average time between two attempts to reach a daemon. There is no event for the start of a daemon: the directory of its
// socket may not exist, and the socket of a killed daemon may be left.
const daemonPause = 50 * time.Millisecond

// awaitDaemon waits until a daemon is running, or ctx is done. The next call returns any other error.
func awaitDaemon(ctx context.Context, c *client.Client) {
	for {
		if _, err := c.Version(ctx); !errors.Is(err, client.ErrNotRunning) {
			return
		}
		if !backoff.Pause(ctx, daemonPause/2+rand.N(daemonPause)) {
			return
		}
	}
}

// addGoal adds the flags --for and --timeout.
func addGoal(cmd *cobra.Command) (goal *choice, timeout *time.Duration) {
	timeout = cmd.Flags().Duration("timeout", 30*time.Second, "how long to wait, for example 90s or 5m")
	return addChoice(cmd, "for", "", "what to wait for", string(client.GoalRegistered), string(client.GoalDeregistered)), timeout
}

// above0 returns an error if a timeout is not positive.
func above0(cmd *cobra.Command, timeout time.Duration) error {
	if timeout <= 0 {
		return wrongUsage(cmd, "--timeout %v must be above zero", timeout)
	}
	return nil
}

func newWaitCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait (TYPE/NAME | NAME)",
		Short: "Wait until a plugin is registered or deregistered",
		Long: `Wait until a plugin is registered, or until none of its instances is, and exit with 0. The plugin need not be known yet,
and the daemon need not be running yet. If the daemon restarts, the command continues to wait.

After the timeout the command prints the state of the plugin and exits with 1. It prints nothing else.

` + namesPlugin,
		Example: `  # Start a driver and wait until it is registered.
  ./driver & patchbay wait CSIPlugin/hostpath.csi.k8s.io --timeout 10s

  # Stop it and wait until it is gone.
  kill %1; patchbay wait CSIPlugin/hostpath.csi.k8s.io --for deregistered`,
		Args: onePlugin,
	}
	socket := addControlSocket(cmd, paths)
	cmd.ValidArgsFunction = completePlugins(socket)
	goal, timeout := addGoal(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return above0(cmd, *timeout) }
	cmd.RunE = socket.ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		ptype, name := pluginOf(args[0])
		defer showProgress(ctx, cmd.ErrOrStderr(), func(ctx context.Context) string { return pluginState(ctx, c, ptype, name) })()
		for {
			awaitDaemon(ctx, c)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				// Make one more call, whose error says that no daemon is running.
				late, cancel := answerInTime(context.WithoutCancel(ctx))
				defer cancel()
				_, err := c.Wait(late, ptype, name, client.Goal(goal.value))
				return err
			}
			if _, err := c.Wait(ctx, ptype, name, client.Goal(goal.value)); !errors.Is(err, client.ErrNotRunning) {
				return err
			}
			backoff.Pause(ctx, daemonPause)
		}
	})
	return cmd
}

func pluginState(ctx context.Context, c *client.Client, ptype, name string) string {
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
