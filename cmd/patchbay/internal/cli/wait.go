package cli

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
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

func newWaitCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait (TYPE/NAME | NAME)",
		Short: "Wait until a plugin is registered or deregistered",
		Long: `Wait until a plugin is registered, or until none of its instances is, and exit with 0. The plugin need not be known yet,
and the daemon need not be running yet. If the daemon restarts, the command continues to wait.

After the timeout the command prints the state of the plugin and exits with 1. It prints nothing else.

` + command.NamesPlugin,
		Example: `  # Start a driver and wait until it is registered.
  ./driver & patchbay wait CSIPlugin/hostpath.csi.k8s.io --timeout 10s

  # Stop it and wait until it is gone.
  kill %1; patchbay wait CSIPlugin/hostpath.csi.k8s.io --for deregistered`,
		Args: command.OnePlugin,
	}
	socket := command.AddControlSocket(cmd, paths)
	cmd.ValidArgsFunction = command.CompletePlugins(socket)
	goal, timeout := command.AddGoal(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return command.Above0(cmd, *timeout) }
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		ptype, name := command.PluginOf(args[0])
		defer console.ShowProgress(ctx, cmd.ErrOrStderr(), func(ctx context.Context) string { return pluginState(ctx, c, ptype, name) })()
		for {
			awaitDaemon(ctx, c)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				// Make one more call, whose error says that no daemon is running.
				late, cancel := command.AnswerInTime(context.WithoutCancel(ctx))
				defer cancel()
				_, err := c.Wait(late, ptype, name, client.Goal(goal.Value))
				return err
			}
			if _, err := c.Wait(ctx, ptype, name, client.Goal(goal.Value)); !errors.Is(err, client.ErrNotRunning) {
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
		return command.PluginID(ptype, name) + " is not known"
	}
	text := command.PluginID(ptype, name) + " is " + console.Escape(instances[0].State)
	if instances[0].LastError != "" {
		text += ": " + console.Escape(instances[0].LastError)
	}
	return text
}
