package cli

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

// daemonPause is how long, on average, wait leaves a control socket alone at which it found no daemon.
const daemonPause = 50 * time.Millisecond

// awaitDaemon waits until there is a daemon, or ctx ends. Whatever else is wrong with it, the next call says.
func awaitDaemon(ctx context.Context, c *client.Client) {
	for {
		if _, err := c.Version(ctx); !errors.Is(err, client.ErrNotRunning) {
			return
		}
		if pause(ctx, daemonPause/2+rand.N(daemonPause)) != nil {
			return
		}
	}
}

// pause leaves a control socket alone for a while, and returns the error of ctx if that ends. Nothing tells of a daemon that is about to
// start: the directory of its socket may not exist yet, and a socket that a killed one left refuses in silence.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// addGoal adds the flags that say what a command waits for, and how long.
func addGoal(cmd *cobra.Command) (goal *choice, timeout *time.Duration) {
	timeout = cmd.Flags().Duration("timeout", 30*time.Second, "how long to wait, for example 90s or 5m")
	return addChoice(cmd, "for", "", "what to wait for", string(client.GoalRegistered), string(client.GoalDeregistered)), timeout
}

// above0 refuses a timeout that leaves no time.
func above0(cmd *cobra.Command, timeout time.Duration) error {
	if timeout <= 0 {
		return wrongUsage(cmd, "--timeout %v is not a time to wait: give one above zero", timeout)
	}
	return nil
}

func newWaitCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait (TYPE/NAME | NAME)",
		Short: "Wait until a plugin is registered or deregistered.",
		Long: `Wait until a plugin is registered, or until none of its instances is, and exit with 0. The plugin need not be known yet,
and the daemon need not be running yet. If it restarts meanwhile, the command goes on waiting.

After the timeout the command says which state the plugin is in and exits with 1. It prints nothing else.

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
		defer sayLater(ctx, cmd.ErrOrStderr(), func(ctx context.Context) string { return presentState(ctx, c, ptype, name) })()
		for {
			awaitDaemon(ctx, c)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				// There is time left to say that there was no daemon.
				late, cancel := answerInTime(context.WithoutCancel(ctx))
				defer cancel()
				_, err := c.Wait(late, ptype, name, client.Goal(goal.value))
				return err
			}
			if _, err := c.Wait(ctx, ptype, name, client.Goal(goal.value)); !errors.Is(err, client.ErrNotRunning) {
				return err
			}
			_ = pause(ctx, daemonPause) // the next look reports whether there is time left
		}
	})
	return cmd
}

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
