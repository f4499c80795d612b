package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
)

// operation is a command that starts, stops or restarts a launched plugin.
type operation struct {
	use, short, long, example string
	do                        func(c *client.Client, ctx context.Context, name string) (*patchbayv1.LaunchedPlugin, error)
}

var operations = []operation{
	{
		use:   "launch NAME",
		short: "Start a plugin of the catalogue",
		long: `Start a plugin of the catalogue (the key plugins of the configuration) that is not running: it has autostart: false, was
stopped, has failed, or is waiting to be restarted. A running plugin is left alone.

The command returns when the process has been started. "patchbay wait" waits until the plugin is registered.`,
		example: `  # Start a plugin and wait until it can be used.
  patchbay launch hello && patchbay wait Greeter/hello`,
		do: (*client.Client).Launch,
	},
	{
		use:   "stop NAME",
		short: "Stop a launched plugin",
		long: `Stop a launched plugin and everything it started: close its standard input, then send SIGTERM, and finally SIGKILL, within its
stopTimeout. It stays down until "patchbay launch" or "patchbay restart", or until the daemon starts again.

The command returns when the plugin has exited.`,
		example: `  patchbay stop hello`,
		do:      (*client.Client).Stop,
	},
	{
		use:   "restart NAME",
		short: "Restart a launched plugin without downtime",
		long: `Start a new process of a launched plugin and stop the old one when the new one is ready. A plugin that serves is ready when it is
registered, so there is no gap. If the new process does not become ready within its startTimeout, it is stopped, the old one keeps running
and the command fails.
With "upgrade: recreate" in the catalogue, the old process is stopped first, and calls wait for the new one.

A plugin that is not running is started, even one that has failed; its restart count is reset.`,
		example: `  # Restart a plugin that has failed too often.
  patchbay status hello
  patchbay restart hello`,
		do: (*client.Client).Restart,
	},
}

func newOperationCommand(paths command.Paths, o operation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   o.use,
		Short: o.short,
		Long: o.long + `

NAME is the name in the catalogue, or TYPE/NAME as the plugin registered.`,
		Example: o.example,
		Args:    command.Takes("NAME"),
	}
	socket := command.AddControlSocket(cmd, paths)
	cmd.ValidArgsFunction = completeLaunched(socket)
	output := command.AddOutput(cmd, "text")
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		done := console.ShowProgress(ctx, cmd.ErrOrStderr(), func(ctx context.Context) string { return launchedState(ctx, c, args[0]) })
		now, err := o.do(c, ctx, args[0])
		done()
		if err != nil {
			return err
		}
		return printLaunched(cmd, output, now)
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
	health := p.Health
	if p.Pid == 0 {
		health = "" // no process has it
	}
	lines := []line{
		{"State", console.Escape(p.State)},
		{"Since", console.Moment(console.TimeOf(p.Since), now)},
		{"PID", positive(p.Pid)},
		{"Socket", console.Escape(p.SocketPath)},
		{"Health", console.Escape(health)},
		{"Restarts", positive(p.Restarts)},
		{"Next start", console.Moment(console.TimeOf(p.NextStart), now)},
		{"Last error", console.Escape(p.LastError)},
		{"Replacement", console.Escape(p.ReplacementError)},
	}
	return append(lines, labelLines(p.Metadata)...)
}

// launched returns the plugin with a name, if the daemon launches one of that name.
func launched(ctx context.Context, c *client.Client, name string) (p *patchbayv1.LaunchedPlugin, found bool, err error) {
	all, err := c.ListLaunched(ctx)
	i := slices.IndexFunc(all, func(p *patchbayv1.LaunchedPlugin) bool { return p.Name == name })
	if i < 0 {
		return nil, false, err
	}
	return all[i], true, nil
}

func launchedState(ctx context.Context, c *client.Client, name string) string {
	p, found, err := launched(ctx, c, name)
	if err != nil || !found {
		return console.Escape(name)
	}
	return console.Escape(name) + " is " + console.Escape(p.State)
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
	past := command.AddPastAndNew(cmd, "new lines", "lines")
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		follow, tail := past()
		request := &patchbayv1.ReadLogsRequest{Name: args[0], Follow: follow, Tail: tail}
		return command.PrintLines(cmd, output, c.Logs(ctx, request), follow, writeRecord)
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
