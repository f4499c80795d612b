package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/internal/command/config"
)

func newConfigCheckCommand(paths paths) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the configuration.",
		Long: `Check the configuration that "patchbay run" would read, or the one that it would read with --config FILE: the file and its
drop-ins, with the environment over them. Whatever is wrong is printed as FILE:LINE:COLUMN: MESSAGE, one line for each error, and the
exit code is 1. Nothing is started or changed.

The daemon refuses to start with, or to reload, what is refused here. That includes what this machine lacks: users, groups, and the programs
of plugins that start with the daemon. So check a configuration on the machine, and as the user, that it is for.`,
		Example: `  patchbay config check
  patchbay config check ./patchbay.yaml && sudo cp patchbay.yaml /etc/patchbay/ && sudo patchbay reload`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return wrongUsage(cmd, "%q takes one file at most, not %d", cmd.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f := &configFlags{paths: paths}
			if len(args) > 0 {
				f.file, f.named = args[0], true
			}
			loaded, err := f.check(cmd)
			if wrong, ok := errors.AsType[config.Errors](err); ok {
				return printErrors(cmd, wrong)
			}
			if err != nil {
				return err
			}
			text := fmt.Appendf(nil, "ok: there is no configuration file, and the defaults can be used\n")
			if len(loaded.Files) > 0 {
				text = nil
			}
			for _, file := range loaded.Files {
				text = fmt.Appendf(text, "ok: %s\n", escape(file))
			}
			return write(cmd.OutOrStdout(), text)
		},
	}
}

func printErrors(cmd *cobra.Command, wrong config.Errors) error {
	var text []byte
	for _, err := range wrong {
		text = fmt.Appendf(text, "%s\n", escape(err.Error()))
	}
	if err := write(cmd.OutOrStdout(), text); err != nil {
		return err
	}
	if len(wrong) == 1 {
		return errors.New("the configuration has an error")
	}
	return fmt.Errorf("the configuration has %d errors", len(wrong))
}
