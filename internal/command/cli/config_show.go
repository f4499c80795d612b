package cli

import (
	"github.com/spf13/cobra"
)

func newConfigShowCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the configuration.",
		Long: `Show what the configuration file and its drop-ins say when they are merged. With --effective, show what the daemon would work
with: the environment and the flags of "patchbay run", which can be given here too, go before the files, and the defaults are filled in.

In YAML a comment says where each value comes from. The output can be used as a configuration file.`,
		Example: `  patchbay config show --effective
  patchbay config show --effective -o json | jq .timeouts`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := addConfigFlags(cmd, paths)
	effective := cmd.Flags().Bool("effective", false, "with the environment, the flags and the defaults")
	output := addChoice(cmd, "output", "o", "output format", "yaml", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := flags.check(cmd)
		if err != nil {
			return blame(cmd, err)
		}
		view := loaded.InFiles()
		if *effective {
			view = loaded.Effective()
		}
		if output.value == "json" {
			return writeJSON(cmd.OutOrStdout(), view)
		}
		text, err := view.YAML()
		if err != nil {
			return err
		}
		return write(cmd.OutOrStdout(), text)
	}
	return cmd
}
