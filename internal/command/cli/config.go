package cli

import (
	"github.com/spf13/cobra"
)

func newConfigCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration of the daemon.",
		Long: `Check and show the configuration of the daemon without a daemon.

It is made of, each going before what comes earlier:

  - defaults, which depend on the user;
  - the configuration file, ` + orNone(paths.config) + ` unless --config or ` + configEnv + ` names another;
  - the drop-ins: the files *.yaml in the directory conf.d beside the configuration file, in the order of their names;
  - the environment;
  - the flags.

Maps are merged key by key; lists and anything else are replaced. An unknown key is an error.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigCheckCommand(paths), newConfigShowCommand(paths), newConfigSchemaCommand())
	return cmd
}

func orNone(path string) string {
	if path == "" {
		return "none"
	}
	return path
}
