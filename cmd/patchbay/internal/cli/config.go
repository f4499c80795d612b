package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

func newConfigCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration of the daemon",
		Long: `Check and show the configuration of the daemon. No daemon needs to run.

It is merged from these sources; later ones override earlier ones:

  - defaults, which depend on the user;
  - the configuration file, ` + cmp.Or(paths.Config, "none") + ` unless --config or ` + command.ConfigEnv + ` names another;
    - the drop-ins: the files *.yaml in the directory conf.d next to the configuration file, in the order of their names;
  - the environment;
  - the flags.

Maps are merged key by key; lists and anything else are replaced. An unknown key is an error.`,
		Args: noArguments,
	}
	cmd.AddCommand(newConfigCheckCommand(paths), newConfigShowCommand(paths), newConfigSchemaCommand())
	return cmd
}

func newConfigCheckCommand(paths command.Paths) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the configuration",
		Long: `Check the configuration that "patchbay run" would use, or that it would use with --config FILE: the file, its drop-ins and the
environment. Each error is printed as FILE:LINE:COLUMN: MESSAGE, and the exit code is 1 if there are any. Nothing is started or changed.

The daemon refuses a configuration with errors, at the start and on reload. The exceptions are plugins that this machine cannot launch now,
because a program, directory or user is missing: the daemon runs without them and tries again, and "patchbay status" shows them. So run the
check on the target machine, as the daemon's user.`,
		Example: `  patchbay config check
  patchbay config check ./patchbay.yaml && sudo cp patchbay.yaml /etc/patchbay/ && sudo patchbay reload`,
		Args: command.Takes("[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f := &command.ConfigFlags{Paths: paths}
			if len(args) > 0 {
				f.File, f.Named = args[0], true
			}
			loaded, err := f.Check(cmd)
			if wrong, ok := errors.AsType[config.Errors](err); ok {
				if err := command.WriteLines(cmd.OutOrStdout(), command.Each(wrong, (*config.Error).Error)); err != nil {
					return err
				}
				if len(wrong) == 1 {
					return errors.New("the configuration has an error")
				}
				return fmt.Errorf("the configuration has %d errors", len(wrong))
			}
			if err != nil {
				return err
			}
			if warning := daemon.Warn(&loaded.Config); warning != "" {
				if err := command.WriteLines(cmd.ErrOrStderr(), []string{"warning: " + warning}); err != nil {
					return err
				}
			}
			if len(loaded.Files) == 0 {
				return command.WriteLines(cmd.OutOrStdout(), []string{"ok: there is no configuration file; the defaults are valid"})
			}
			return command.WriteLines(cmd.OutOrStdout(), command.Each(loaded.Files, func(file string) string { return "ok: " + file }))
		},
	}
}

func newConfigShowCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the configuration",
		Long: `Show the configuration file merged with its drop-ins. With --effective, show what the daemon would use, including the environment,
defaults, and flags of "patchbay run", which this command also takes. With --running, ask the daemon at the control socket what it
uses; possible secrets are left out.

In YAML, comments say where each value comes from. The output can be used as a configuration file.`,
		Example: `  patchbay config show --effective
  patchbay config show --effective -o json | jq .timeouts`,
	}
	flags := command.AddConfigFlags(cmd, paths)
	effective := cmd.Flags().Bool("effective", false, "include the environment, the flags and the defaults")
	running := cmd.Flags().Bool("running", false, "show the configuration of the running daemon, without possible secrets, as YAML")
	output := command.AddChoice(cmd, "output", "o", "output format", "yaml", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *running && (*effective || output.Value != "yaml") {
			return command.WrongUsage(cmd, "--running always shows the whole configuration as YAML: leave --effective and --output out")
		}
		if *running {
			return showRunning(cmd, flags)
		}
		loaded, err := flags.Check(cmd)
		if err != nil {
			return command.Blame(cmd, err)
		}
		view := loaded.InFiles()
		if *effective {
			view = loaded.Effective()
		}
		if output.Value == "json" {
			return command.WriteJSON(cmd.OutOrStdout(), view)
		}
		text, err := view.YAML() // with comments
		if err != nil {
			return err
		}
		return console.Write(cmd.OutOrStdout(), text)
	}
	return cmd
}

func showRunning(cmd *cobra.Command, flags *command.ConfigFlags) error {
	sources, err := flags.Sources(cmd)
	if err != nil {
		return err
	}
	c, _ := command.Load(sources) // only its control socket matters
	if c == nil {
		c = command.WithoutFiles(sources)
	}
	asked := client.New(c.ControlSocket)
	defer asked.Close()
	ctx, cancel := command.AnswerInTime(cmd.Context())
	defer cancel()
	now, err := asked.Configuration(ctx)
	if err != nil {
		return err
	}
	return command.WriteLines(cmd.OutOrStdout(), strings.Split(strings.TrimSuffix(now.Effective, "\n"), "\n"))
}

func newConfigSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the configuration file",
		Long: `Print the JSON schema (draft 2020-12) of the configuration file and of each drop-in. Editors complete and check YAML files with it.
"patchbay config check" finds more, such as values that contradict each other.`,
		Example: `  patchbay config schema > ~/.config/patchbay/schema.json
  sed -i '1i # yaml-language-server: $schema=schema.json' ~/.config/patchbay/patchbay.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return console.Write(cmd.OutOrStdout(), config.Schema())
		},
	}
}

func newReloadCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Reload the daemon's configuration",
		Long: `Make the daemon read and apply its configuration again, and print the values that changed. SIGHUP does the same.

Handlers, timeouts, the log and the catalogue of plugins can change. If anything else has changed, or a file has an error, nothing is
applied: the command says why and exits with 1, and the previous configuration stays in force. Plugins that a change does not concern are
not disturbed. The daemon's flags and environment still override the files.

The command waits until the daemon is ready and the processes of changed plugins have been replaced. If one could not be, the configuration
is in force nevertheless, and the command prints the reason and exits with 1. If the daemon has not answered after the timeout, the command
exits with 1, and "patchbay config show --running" shows which configuration is in force.`,
		Example: `  patchbay reload
  patchbay reload -o json | jq -r '.changed[]'`,
	}
	socket := command.AddControlSocket(cmd, paths)
	output := command.AddOutput(cmd, "text")
	timeout := cmd.Flags().Duration("timeout", 5*time.Minute, "how long to wait for the daemon, and for replacements")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return command.Above0(cmd, *timeout) }
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		reloaded, err := c.Reload(ctx)
		if err != nil {
			return err
		}
		err = output.Print(cmd, reloaded, func(w io.Writer) error {
			changed := cmp.Or(strings.Join(reloaded.Changed, ", "), "nothing changed")
			return command.WriteLines(w, []string{"configuration reloaded: " + changed})
		})
		if err == nil && len(reloaded.NotReplaced) > 0 {
			err = fmt.Errorf("the configuration is in force, but %s", strings.Join(reloaded.NotReplaced, "; "))
		}
		return err
	})
	return cmd
}
