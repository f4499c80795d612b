package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
)

func newLaunchCommand(paths command.Paths) *cobra.Command {
	return newOperationCommand(paths, (*client.Client).Launch, &cobra.Command{
		Use:   "launch NAME",
		Short: "Start a plugin of the catalogue",
		Long: `Start a plugin of the catalogue (the key plugins of the configuration) that is not running: it has autostart: false, was
stopped, has failed, or is waiting to be restarted. A running plugin is left alone.

The command returns when the process has been started. "patchbay wait" waits until the plugin is registered.

NAME is the name in the catalogue, or TYPE/NAME as the plugin registered.`,
		Example: `  # Start a plugin and wait until it can be used.
  patchbay launch hello && patchbay wait Greeter/hello`,
	})
}

func newStopCommand(paths command.Paths) *cobra.Command {
	return newOperationCommand(paths, (*client.Client).Stop, &cobra.Command{
		Use:   "stop NAME",
		Short: "Stop a launched plugin",
		Long: `Stop a launched plugin and everything it started: close its standard input, then send SIGTERM, and finally SIGKILL, within its
stopTimeout. It stays down until "patchbay launch" or "patchbay restart", or until the daemon starts again.

The command returns when the plugin has exited.

NAME is the name in the catalogue, or TYPE/NAME as the plugin registered.`,
		Example: `  patchbay stop hello`,
	})
}

func newRestartCommand(paths command.Paths) *cobra.Command {
	return newOperationCommand(paths, (*client.Client).Restart, &cobra.Command{
		Use:   "restart NAME",
		Short: "Restart a launched plugin without downtime",
		Long: `Start a new process of a launched plugin and stop the old one when the new one is ready. A plugin that serves is ready when it is
registered, so there is no gap. If the new process does not become ready within its startTimeout, it is stopped, the old one keeps running
and the command fails.
With "upgrade: recreate" in the catalogue, the old process is stopped first, and calls wait for the new one.

A plugin that is not running is started, even one that has failed; its restart count is reset.

NAME is the name in the catalogue, or TYPE/NAME as the plugin registered.`,
		Example: `  # Restart a plugin that has failed too often.
  patchbay status hello
  patchbay restart hello`,
	})
}

// newOperationCommand completes a command that starts, stops or restarts a launched plugin.
func newOperationCommand(
	paths command.Paths, do func(*client.Client, context.Context, string) (*patchbayv1.LaunchedPlugin, error), cmd *cobra.Command,
) *cobra.Command {
	cmd.Args = command.Takes("NAME")
	socket := command.AddControlSocket(cmd, paths)
	cmd.ValidArgsFunction = completeLaunched(socket)
	output := command.AddOutput(cmd, "text")
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		done := console.ShowProgress(ctx, cmd.ErrOrStderr(), func(ctx context.Context) string { return launchedState(ctx, c, args[0]) })
		now, err := do(c, ctx, args[0])
		done()
		if err != nil {
			return err
		}
		return printLaunched(cmd, output, now)
	})
	return cmd
}

func newRetryCommand(paths command.Paths) *cobra.Command {
	return newRequestCommand(paths, (*client.Client).Retry, &cobra.Command{
		Use:   "retry (TYPE/NAME | NAME)",
		Short: "Retry the registration of a plugin now",
		Long: `Immediately retry the registration of a plugin's instances that failed, were refused, or have no handler. The back-off is reset.

The command returns when the attempt has begun; use "patchbay wait" to wait for the registration. If no instance waits for another
attempt, it prints the state of the plugin and exits with 1.

` + command.NamesPlugin,
		Example: `  # After the cause of a failed registration was fixed.
  patchbay retry CSIPlugin/hostpath.csi.k8s.io && patchbay wait CSIPlugin/hostpath.csi.k8s.io`,
	})
}

func newReleaseCommand(paths command.Paths) *cobra.Command {
	return newRequestCommand(paths, (*client.Client).ReleaseName, &cobra.Command{
		Use:   "release (TYPE/NAME | NAME)",
		Short: "Release a reserved plugin name",
		Long: `Free the name of a plugin that is gone. A name stays reserved for its user for some time (trust.nameGrace), so that no other user's
plugin takes it during a restart; "patchbay status" shows for whom and until when. Plugins that were refused because of the reservation
are retried immediately.

` + command.NamesPlugin,
		Example: `  # Before the driver runs as another user.
  patchbay release CSIPlugin/hostpath.csi.k8s.io`,
	})
}

// newRequestCommand completes a command that makes one request about a plugin and prints nothing on success.
func newRequestCommand(
	paths command.Paths, do func(c *client.Client, ctx context.Context, ptype, name string) error, cmd *cobra.Command,
) *cobra.Command {
	cmd.Args = command.OnePlugin
	socket := command.AddControlSocket(cmd, paths)
	cmd.ValidArgsFunction = command.CompletePlugins(socket)
	cmd.RunE = socket.Ask(command.AnswerTimeout, func(ctx context.Context, c *client.Client, _ *cobra.Command, args []string) error {
		ptype, name := command.PluginOf(args[0])
		return do(c, ctx, ptype, name)
	})
	return cmd
}

func printLaunched(cmd *cobra.Command, output *command.Choice, p *patchbayv1.LaunchedPlugin) error {
	return output.Print(cmd, p, func(w io.Writer) error {
		var text bytes.Buffer
		fmt.Fprintln(&text, console.Escape(p.Name))
		writeDescription(&text, console.TerminalOf(w), describeLaunched(p, time.Now()))
		return console.Write(w, text.Bytes())
	})
}

func describeLaunched(p *patchbayv1.LaunchedPlugin, now time.Time) []line {
	serving := p.Health
	if p.Pid == 0 {
		serving = "" // no process has it
	}
	lines := append([]line{{"State", console.Escape(p.State)}}, healthLines(p.OverallHealth, now, p.LastError, p.ReplacementError)...)
	lines = append(lines, []line{
		{"Since", console.Moment(console.TimeOf(p.Since), now)},
		{"PID", positive(p.Pid)},
		{"Socket", console.Escape(p.SocketPath)},
		{"Serving status", console.Escape(serving)},
		{"Restarts", positive(p.Restarts)},
		{"Next start", console.Moment(console.TimeOf(p.NextStart), now)},
		{"Last error", console.Escape(p.LastError)},
		{"Replacement", console.Escape(p.ReplacementError)},
	}...)
	return append(lines, labelLines(p.Metadata)...)
}

func launchedState(ctx context.Context, c *client.Client, name string) string {
	all, _ := c.ListLaunched(ctx)
	for _, p := range all {
		if p.Name == name {
			return console.Escape(name) + " is " + console.Escape(p.State)
		}
	}
	return console.Escape(name)
}

func completeLaunched(socket *command.ControlSocket) cobra.CompletionFunc {
	return command.CompleteWith(socket, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.ListLaunched(ctx)
		return command.Each(all, func(p *patchbayv1.LaunchedPlugin) string { return p.Name }), err
	})
}

func newLogsCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show the output and log of a launched plugin",
		Long: `Show the standard output, standard error and log records of a launched plugin, oldest first, across its restarts: the
latest 256 KiB. Lines above the plugin's logRate were dropped; a count shows where.

With --follow the command continues with new lines until it is interrupted, and fails if the daemon goes away.

NAME is the name in the catalogue, or TYPE/NAME as the plugin registered.`,
		Example: `  # The last ten lines, and then every new one.
  patchbay logs hello --tail 10 --follow

  # Only errors.
  patchbay logs hello -o json | jq -r 'select(.level >= 8) | .message'`,
		Args: command.Takes("NAME"),
	}
	socket := command.AddControlSocket(cmd, paths)
	cmd.ValidArgsFunction = completeLaunched(socket)
	output := command.AddLines(cmd)
	request := &patchbayv1.ReadLogsRequest{}
	command.AddPastAndNew(cmd, &request.Follow, &request.Tail, "new lines", "lines")
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		request.Name = args[0]
		return command.PrintLines(cmd, output, c.Logs(ctx, request), request.Follow, writeRecord)
	})
	return cmd
}

func writeRecord(w io.Writer, r *patchbayv1.LogRecord) error {
	text := fmt.Appendf(nil, "%s  %-5s  %s", r.Time.AsTime().Local().Format(console.Millis), slog.Level(r.Level), console.Escape(r.Message))
	for _, a := range r.Attributes {
		text = fmt.Appendf(text, " %s=%s", console.Escape(a.Key), console.Escape(a.Value))
	}
	return console.Write(w, append(text, '\n'))
}
