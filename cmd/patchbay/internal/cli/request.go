package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
)

// request is a command that makes one request about a plugin and prints nothing on success.
type request struct {
	use, short, long, example string
	do                        func(c *client.Client, ctx context.Context, ptype, name string) error
}

var requests = []request{
	{
		use:   "retry (TYPE/NAME | NAME)",
		short: "Retry the registration of a plugin now",
		long: `Immediately retry the registration of a plugin's instances that failed, were refused, or have no handler. The back-off is reset.

The command returns when the attempt has begun; use "patchbay wait" to wait for the registration. If no instance waits for another
attempt, it prints the state of the plugin and exits with 1.`,
		example: `  # After the cause of a failed registration was fixed.
  patchbay retry CSIPlugin/hostpath.csi.k8s.io && patchbay wait CSIPlugin/hostpath.csi.k8s.io`,
		do: (*client.Client).Retry,
	},
	{
		use:   "release (TYPE/NAME | NAME)",
		short: "Release a reserved plugin name",
		long: `Free the name of a plugin that is gone. A name stays reserved for its user for some time (trust.nameGrace), so that no other user's
plugin takes it during a restart; "patchbay status" shows for whom and until when. Plugins that were refused because of the reservation
are retried immediately.`,
		example: `  # Before the driver runs as another user.
  patchbay release CSIPlugin/hostpath.csi.k8s.io`,
		do: (*client.Client).ReleaseName,
	},
}

func newRequestCommand(paths command.Paths, r request) *cobra.Command {
	cmd := &cobra.Command{
		Use:     r.use,
		Short:   r.short,
		Long:    r.long + "\n\n" + command.NamesPlugin,
		Example: r.example,
		Args:    command.OnePlugin,
	}
	socket := command.AddControlSocket(cmd, paths)
	cmd.ValidArgsFunction = command.CompletePlugins(socket)
	cmd.RunE = socket.Ask(command.AnswerTimeout, func(ctx context.Context, c *client.Client, _ *cobra.Command, args []string) error {
		ptype, name := command.PluginOf(args[0])
		return r.do(c, ctx, ptype, name)
	})
	return cmd
}
