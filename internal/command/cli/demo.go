package cli

import (
	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/internal/command/demo"
)

func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show the whole life of two plugins, with real processes.",
		Long: `Show the whole life of two plugins in a temporary directory, with real processes, as it happens: they are found, registered and
called; one is upgraded while it is in use; one is killed; the daemon is killed and remembers.

It takes a few seconds and needs nothing. Afterwards, and after an interrupt at any moment, no process and no file of it is left.`,
		Example: "  patchbay demo",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Run(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

// newDemoParts returns what the demo runs as processes of their own.
func newDemoParts() []*cobra.Command {
	return []*cobra.Command{{
		Use:    demo.HostCommand + " PLUGIN-DIR STATE CONTROL-SOCKET",
		Hidden: true,
		Args:   exactly(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := daemon.New(daemon.Config{
				PluginDirs: args[:1], StatePath: args[1], ControlSocket: args[2],
				Handlers: map[string]daemon.HandlerKind{demo.PluginType: daemon.HandlerAccept},
			})
			if err != nil {
				return err
			}
			return demo.Host(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), d)
		},
	}, {
		Use:    demo.PluginCommand + " NAME SOCKET VERSIONS",
		Hidden: true,
		Args:   exactly(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			return demo.Plugin(cmd.Context(), cmd.InOrStdin(), args[0], args[1], args[2])
		},
	}}
}
