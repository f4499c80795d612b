package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

// onePlugin is for commands whose only argument is TYPE/NAME.
func onePlugin(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return wrongUsage(cmd, "%q takes one argument, TYPE/NAME, and got %d", cmd.CommandPath(), len(args))
	}
	if ptype, name := splitPlugin(args[0]); ptype == "" || name == "" {
		return wrongUsage(cmd, "malformed plugin %q: write TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io", args[0])
	}
	return nil
}

// splitPlugin splits TYPE/NAME. The type ends at the first slash; a name may have more.
func splitPlugin(arg string) (ptype, name string) {
	ptype, name, _ = strings.Cut(arg, "/")
	return ptype, name
}

// pluginID is how plugins are written for people: TYPE/NAME, or "-" for a socket that has not said who it is.
func pluginID(ptype, name string) string {
	if ptype == "" && name == "" {
		return "-"
	}
	return escape(ptype + "/" + name)
}

// completePlugins completes TYPE/NAME with the plugins that the daemon knows. Without a daemon there is nothing to complete.
func completePlugins(socket *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c := client.New(*socket)
		defer c.Close()
		ctx, cancel := answerInTime(cmd.Context())
		defer cancel()
		listing, err := c.List(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(listing.Plugins), cobra.ShellCompDirectiveNoFileComp
	}
}
