package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

func newLogsCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show what a launched plugin printed and logged.",
		Long: `Show what a launched plugin wrote to standard output and standard error and what it logged through its host, oldest first, over
all its processes, as far as it is kept: the newest 256 KiB. Lines above the plugin's logRate were dropped, and are counted where they
are missing.

With --follow the command goes on with what comes until it is interrupted, which is no failure, or the daemon goes away, which is one.

NAME is the name in the catalogue, or TYPE/NAME as the plugin registered.`,
		Example: `  # The last ten lines, and then every new one.
  patchbay logs hello --tail 10 --follow

  # Only errors.
  patchbay logs hello -o json | jq -r 'select(.level >= 8) | .message'`,
		Args: oneLaunched,
	}
	socket := addControlSocket(cmd, paths)
	cmd.ValidArgsFunction = completeLaunched(socket)
	output := addLines(cmd)
	flags := addPastAndNew(cmd, "what comes", "lines")
	cmd.RunE = socket.ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		records := c.Logs(ctx, args[0], client.LogsOptions{Follow: flags.follow, Tail: flags.tail()})
		return printLines(cmd, output, records, flags.follow, writeRecord)
	})
	return cmd
}

func writeRecord(w io.Writer, r client.LogRecord) error {
	text := fmt.Appendf(nil, "%s  %-5s  %s", r.Time.Local().Format("2006-01-02T15:04:05.000Z07:00"), slog.Level(r.Level), escape(r.Message))
	for _, a := range r.Attributes {
		text = fmt.Appendf(text, " %s=%s", escape(a.Key), escape(a.Value))
	}
	return write(w, append(text, '\n'))
}
