package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

// request is a command that asks for something about one plugin, and says nothing if it is granted.
type request struct {
	use, short, long, example string
	do                        func(c *client.Client, ctx context.Context, ptype, name string) error
}

var requests = []request{
	{
		use:   "retry TYPE/NAME",
		short: "Try at once to register a plugin that waits for its next attempt.",
		long: `Try at once to register what waits of a plugin: an instance whose last attempt failed, that was refused, or whose type nobody
handles. The pauses between attempts begin anew. TYPE may be a role of the plugin, for example csi-node.

The command returns when the attempt has begun; "patchbay wait" waits until the plugin is registered. If nothing of the plugin waits, it
says what the plugin does and exits with 1.`,
		example: `  # What kept it from being registered was fixed.
  patchbay retry CSIPlugin/hostpath.csi.k8s.io && patchbay wait CSIPlugin/hostpath.csi.k8s.io`,
		do: (*client.Client).Retry,
	},
	{
		use:   "release TYPE/NAME",
		short: "Let go of a name that is kept for the user of a plugin that is gone.",
		long: `Let go of the name of a plugin that is gone. It is kept for the plugin's user for some time (trust.nameGrace), so that no plugin of
another user takes it while that one restarts; "patchbay status" shows for whom, and until when. A plugin of another user that was
refused for it is tried at once.`,
		example: `  # The driver runs as another user from now on.
  patchbay release CSIPlugin/hostpath.csi.k8s.io`,
		do: (*client.Client).ReleaseName,
	},
}

func newRequestCommand(paths paths, r request) *cobra.Command {
	cmd := &cobra.Command{
		Use:   r.use,
		Short: r.short,
		Long: r.long + `

The type ends at the first slash; the name may have more.`,
		Example: r.example,
		Args:    onePlugin,
	}
	socket := addControlSocket(cmd, paths)
	cmd.ValidArgsFunction = completePlugins(socket)
	cmd.RunE = socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, _ *cobra.Command, args []string) error {
		ptype, name, _ := client.ParsePlugin(args[0])
		return r.do(c, ctx, ptype, name)
	})
	return cmd
}
