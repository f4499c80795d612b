package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
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
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	socket := addControlSocket(cmd, paths)
	output := addChoice(cmd, "output", "o", "output format", "text", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := socket.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := answerInTime(cmd.Context())
		defer cancel()
		reloaded, err := c.Reload(ctx)
		if err != nil {
			return err
		}
		switch output.value {
		case "json":
			return writeJSON(cmd.OutOrStdout(), reloaded)
		case "yaml":
			return writeYAML(cmd.OutOrStdout(), reloaded)
		}
		changed := "nothing changed"
		if len(reloaded.Changed) > 0 {
			changed = strings.Join(reloaded.Changed, ", ")
		}
		return write(cmd.OutOrStdout(), fmt.Appendf(nil, "configuration reloaded: %s\n", escape(changed)))
	}
	return cmd
}
