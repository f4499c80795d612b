package cli

import (
	"cmp"
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

func newReloadCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the daemon reload its configuration.",
		Long: `Have the daemon read its configuration anew and change to it, and print which values changed. SIGHUP does the same.

Handlers, timeouts, the log and the catalogue of plugins can change. If anything else has changed, or a file has an error, nothing
changes: the command says why and exits with 1, and the daemon goes on with the configuration before. A plugin that is not concerned
notices nothing. The flags of the daemon and its environment stay and go before the files.`,
		Example: `  patchbay reload
  patchbay reload -o json | jq -r '.changed[]'`,
	}
	socket := addControlSocket(cmd, paths)
	output := addOutput(cmd, "text")
	cmd.RunE = socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		reloaded, err := c.Reload(ctx)
		if err != nil {
			return err
		}
		return output.print(cmd, reloaded, func(w io.Writer) error {
			changed := cmp.Or(strings.Join(reloaded.Changed, ", "), "nothing changed")
			return writeLines(w, []string{"configuration reloaded: " + changed})
		})
	})
	return cmd
}
