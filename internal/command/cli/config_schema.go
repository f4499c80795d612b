package cli

import (
	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/internal/command/config"
)

func newConfigSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the configuration file.",
		Long: `Print the JSON schema (draft 2020-12) of the configuration file and of each drop-in. Editors complete and check YAML files with it.
It knows less than "patchbay config check", which also sees what follows from several values together.`,
		Example: `  patchbay config schema > ~/.config/patchbay/schema.json
  sed -i '1i # yaml-language-server: $schema=schema.json' ~/.config/patchbay/patchbay.yaml`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return write(cmd.OutOrStdout(), config.Schema())
		},
	}
}
