package cli

import (
	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/demo"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Run a demo with two real plugins",
		Long: `Run a daemon and two plugins in a temporary directory and show what happens: they are discovered, registered and called; one is
upgraded under load; one is killed; the daemon is killed and remembers the plugins when it starts again.

The demo takes about a second and has no requirements. It leaves no process or file behind, even if you interrupt it.`,
		Example: "  patchbay demo",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := demo.Run(cmd.Context(), cmd.OutOrStdout()); err != nil {
				return err
			}
			program, inClone := invocation()
			next := program + " init plugin hello.example.com --type Greeter"
			if inClone {
				next += " --replace . --dir /tmp/hello"
			}
			return command.WriteLines(cmd.OutOrStdout(), []string{"", "next, write a plugin of your own:", "  " + next})
		},
	}
}

// newDemoParts returns the hidden commands that the demo runs as separate processes.
func newDemoParts() []*cobra.Command {
	return []*cobra.Command{{
		Use:    demo.HostCommand + " PLUGIN-DIR STATE CONTROL-SOCKET",
		Hidden: true,
		Args:   command.Takes("PLUGIN-DIR", "STATE", "CONTROL-SOCKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := demo.UntilClosed(cmd.Context(), cmd.InOrStdin())
			defer cancel()
			d, err := daemon.New(daemon.Options{Loaded: config.Loaded{Config: config.Config{
				PluginDirs: args[:1], State: args[1], ControlSocket: args[2],
				Handlers: map[string]string{demo.PluginType: daemon.HandlerAccept},
			}}})
			if err != nil {
				return err
			}
			return d.Run(ctx)
		},
	}, {
		Use:    demo.PluginCommand + " NAME SOCKET VERSIONS",
		Hidden: true,
		Args:   command.Takes("NAME", "SOCKET", "VERSIONS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := demo.UntilClosed(cmd.Context(), cmd.InOrStdin())
			defer cancel()
			return demo.Plugin(ctx, args[0], args[1], args[2])
		},
	}}
}
