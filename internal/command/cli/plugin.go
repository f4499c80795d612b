package cli

import (
	"context"
	"regexp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

// onePlugin is for commands whose only argument is TYPE/NAME.
func onePlugin(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return wrongUsage(cmd, "%q takes one argument, TYPE/NAME, and got %d", cmd.CommandPath(), len(args))
	}
	if _, _, ok := client.ParsePlugin(args[0]); !ok {
		return wrongUsage(cmd, "malformed plugin %q: write TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io", args[0])
	}
	return nil
}

// pluginID is how plugins are written for people: TYPE/NAME, NAME for a launched plugin that has not registered, or "-" for a socket that
// has not said who it is.
func pluginID(ptype, name string) string {
	switch {
	case ptype == "" && name == "":
		return "-"
	case ptype == "":
		return escape(name)
	}
	return escape(ptype + "/" + name)
}

// completePlugins completes TYPE/NAME with the plugins that the daemon knows.
func completePlugins(socket *controlSocket) cobra.CompletionFunc {
	return completeWith(socket, 1, func(ctx context.Context, c *client.Client, _ []string) ([]string, error) {
		listing, err := c.List(ctx)
		return names(listing.Plugins), err
	})
}

// completeWith completes the first arguments, or a flag, with what a daemon lists in view of the arguments before. Without a daemon there
// is nothing to complete.
func completeWith(
	socket *controlSocket, most int, list func(ctx context.Context, c *client.Client, args []string) ([]string, error),
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (completions []cobra.Completion, _ cobra.ShellCompDirective) {
		ask := socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, _ *cobra.Command, args []string) error {
			found, err := list(ctx, c, args)
			completions = slices.DeleteFunc(found, func(c string) bool { return !completable.MatchString(c) })
			return err
		})
		if len(args) >= most || ask(cmd, args) != nil {
			completions = nil
		}
		return completions, cobra.ShellCompDirectiveNoFileComp
	}
}

// completable are the words that are the same to every shell and cannot be taken for anything else: plugins choose their names, and one
// with spaces, quotes, a leading dash or what cobra takes for a directive of its own is for those to type who know what it is.
var completable = regexp.MustCompile(`^[\p{L}\p{N}._][\p{L}\p{N}._/:@+,=-]*$`)
