package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
		Use:   "wait (TYPE/NAME | NAME | --all-healthy)",
		Short: "Wait until a plugin is registered or deregistered, or all are healthy",
		Long: `Wait until a plugin is registered, or until none of its instances is, and exit with 0. The plugin need not be known yet,
and the daemon need not be running yet. If the daemon restarts, the command continues to wait.

With --all-healthy, wait until no plugin needs attention and none is being started, registered or stopped. A launched plugin that has
failed is healthy when it has not failed for restart.window; see "patchbay status". The daemon must have started: what it has not
discovered yet is not waited for.

After the timeout the command prints the state of the plugin, or what needs attention, and exits with 1. It prints nothing else, except with
-o json: then the result is an object as that of "patchbay status".

` + command.NamesPlugin,
		Example: `  # Start a driver and wait until it is registered.
  ./driver & patchbay wait CSIPlugin/hostpath.csi.k8s.io --timeout 10s

  # Stop it and wait until it is gone.
  kill %1; patchbay wait CSIPlugin/hostpath.csi.k8s.io --for deregistered

  # Go on with a deployment only if everything works.
  patchbay reload && patchbay wait --all-healthy --timeout 60s`,
	}
	all := cmd.Flags().Bool("all-healthy", false, "wait until all plugins are healthy")
	output := command.AddOutput(cmd, "text")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case !*all && output.Value != "text":
			return command.WrongUsage(cmd, "-o %s needs --all-healthy", output.Value)
		case !*all:
			return command.OnePlugin(cmd, args)
		case len(args) > 0 || cmd.Flags().Changed("for"):
			return command.WrongUsage(cmd, "--all-healthy waits for all plugins: leave the plugin and --for out")
		}
		return nil
	}
	socket := command.AddControlSocket(cmd, paths)
	cmd.ValidArgsFunction = command.CompletePlugins(socket)
	goal, timeout := command.AddGoal(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return command.Above0(cmd, *timeout) }
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		if *all {
			return waitAllHealthy(ctx, c, cmd, output)
		}
		ptype, name := command.PluginOf(args[0])
		defer console.ShowProgress(ctx, cmd.ErrOrStderr(), func(ctx context.Context) string { return pluginState(ctx, c, ptype, name) })()
		return whileDown(ctx, func() error {
			_, err := c.Wait(ctx, ptype, name, client.Goal(goal.Value))
			return err
		})
	})
	return cmd
}

// whileDown calls do again until a daemon has answered it, or the deadline of ctx has passed.
func whileDown(ctx context.Context, do func() error) error {
	for {
		err := do()
		isDown := errors.Is(err, client.ErrNotRunning)
		if !isDown || !backoff.Pause(ctx, daemonPause/2+rand.N(daemonPause)) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return err
		}
	}
}

// waitAllHealthy waits for the plugins that are there. Those that were refused and are gone do not count.
func waitAllHealthy(ctx context.Context, c *client.Client, cmd *cobra.Command, output *command.Choice) error {
	var last *attention
	isHealthy := false
	err := whileDown(ctx, func() error {
		return onChange(ctx, c, nil, func() (bool, error) {
			now, err := askNeeds(ctx, c)
			if err == nil {
				now.needs = slices.DeleteFunc(now.needs, func(n need) bool { return n.State == stateGone })
				last, isHealthy = &now, len(now.needs) == 0 && now.inProgress == 0
			}
			return isHealthy, err
		})
	})
	switch {
	case err != nil:
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case last == nil:
		return fmt.Errorf("the daemon has not answered in time: %w", context.DeadlineExceeded)
	case isHealthy && output.Value == "text":
		return nil
	}
	if err := last.print(cmd, output); err != nil || isHealthy {
		return err
	}
	return errors.New("not all plugins are healthy in time")
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
