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
			_, err := c.Wait(ctx, ptype, name, client.Goal(goal.Value))
			isDown := errors.Is(err, client.ErrNotRunning)
			if !isDown || !backoff.Pause(ctx, daemonPause/2+rand.N(daemonPause)) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return err
			}
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
