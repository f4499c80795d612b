package cli

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newCompletionCommand() *cobra.Command {
	shells := map[string]func(*cobra.Command, io.Writer) error{
		"bash":       func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"fish":       func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
		"powershell": (*cobra.Command).GenPowerShellCompletionWithDesc,
		"zsh":        (*cobra.Command).GenZshCompletion,
	}
	known := slices.Sorted(maps.Keys(shells))
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a completion script for a shell.",
		Long: `Print a script that completes the commands, flags and arguments of patchbay in a shell: bash, fish, powershell or zsh.
The names of plugins are completed by asking the daemon.`,
		Example: `  # Completion in this bash session. It needs the package bash-completion.
  source <(patchbay completion bash)

  # Completion in every zsh session.
  patchbay completion zsh > "${fpath[1]}/_patchbay"

  # Completion in every fish session.
  patchbay completion fish > ~/.config/fish/completions/patchbay.fish`,
		ValidArgs: known,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || shells[args[0]] == nil {
				return wrongUsage(cmd, "%q takes one argument, the shell: %s", cmd.CommandPath(), strings.Join(known, ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return shells[args[0]](cmd.Root(), cmd.OutOrStdout()) },
	}
}
