package cli

import (
	"context"
	"regexp"
	"slices"
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
	return completeWith(socket, func(ctx context.Context, c *client.Client) ([]string, error) {
		listing, err := c.List(ctx)
		return names(listing.Plugins), err
	})
}

// completeWith completes one argument with what a daemon lists. Without a daemon there is nothing to complete.
func completeWith(socket *controlSocket, list func(context.Context, *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := socket.connect(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		ctx, cancel := answerInTime(cmd.Context())
		defer cancel()
		completions, err := list(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		completions = slices.DeleteFunc(completions, func(c string) bool { return !completable.MatchString(c) })
		return completions, cobra.ShellCompDirectiveNoFileComp
	}
}

// completable are the words that are the same to every shell and cannot be taken for anything else: plugins choose their names, and one
// with spaces, quotes, a leading dash or what cobra takes for a directive of its own is for those to type who know what it is.
var completable = regexp.MustCompile(`^[\p{L}\p{N}._][\p{L}\p{N}._/:@+,=-]*$`)
