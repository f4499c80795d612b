package cli

import "github.com/spf13/cobra"

// Manual returns the command tree that documentation is generated from. Whoever generates it, wherever: the defaults are those of root.
func Manual() *cobra.Command {
	root := newRootFor(pathsFor(0, func(string) string { return "" }))
	root.DisableAutoGenTag = true // it would say which library wrote the page
	return root
}
