package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/call"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/internal/suggest"
)

// newRoot returns a new command tree with the defaults of the current user.
func newRoot() *cobra.Command { return newRootFor(command.PathsFor(os.Geteuid(), os.Getenv)) }

func newRootFor(paths command.Paths) *cobra.Command {
	root := &cobra.Command{
		Use:   "patchbay",
		Short: "Discover and register plugins that speak the kubelet registration protocol",
		Long: `Patchbay discovers plugins by their Unix sockets in a directory, registers them, and remembers them across restarts.

"patchbay run" is the daemon. The other commands talk to a running daemon over its control socket. They exit with 0 on success, with 1
on failure, and with 2 if the command line is wrong.`,
		Example: `  # Run the daemon, and list its plugins and events from another terminal.
  patchbay run --plugin-dir /tmp/plugins
  patchbay list
  patchbay events --follow`,
		Version:                    thisVersion().String(),
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{DisableNoDescFlag: true},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return command.WrongUsage(cmd, "%w", err) })
	root.SetHelpCommand(newHelpCommand())
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(
		newDemoCommand(),
		newRunCommand(paths),
		newListCommand(paths),
		newStatusCommand(paths),
		newEventsCommand(paths),
		newTopCommand(paths),
		newWaitCommand(paths),
		call.NewCommand(paths),
		newVerifyCommand(),
		fleet.NewCommand(paths),
		newLogsCommand(paths),
		newDevicesCommand(paths),
		newReloadCommand(paths),
		newConfigCommand(paths),
		newDoctorCommand(paths),
		newSupportDumpCommand(paths),
		newInitCommand(),
		newVersionCommand(),
		newLaunchCommand(paths),
		newStopCommand(paths),
		newRestartCommand(paths),
		newRetryCommand(paths),
		newReleaseCommand(paths),
	)
	root.AddCommand(newDemoParts()...)
	return root
}

// Manual returns the command tree for the documentation. Its defaults are those of root.
func Manual() *cobra.Command {
	root := newRootFor(command.PathsFor(0, func(string) string { return "" }))
	root.DisableAutoGenTag = true
	addDefaults(root)
	return root
}

// addDefaults adds the command completion, which writes to the output that was set, and sets the defaults of all commands.
func addDefaults(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	for _, cmd := range append(completion.Commands(), completion) {
		cmd.Args = nil
	}
	setDefaults(root)
}

// setDefaults sets the defaults of a command and its subcommands: a command with subcommands shows its help if none is named; any other
// takes no arguments unless its Args are set.
func setDefaults(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		setDefaults(sub)
	}
	switch {
	case cmd.HasSubCommands():
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		if cmd.Args == nil {
			cmd.Args = knownCommand
		}
	case cmd.Args == nil:
		cmd.Args, cmd.ValidArgsFunction = noArguments, cobra.NoFileCompletions
	}
}

func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		Long:  `Show what a command does, its flags and examples. "patchbay COMMAND --help" shows the same.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return command.WrongUsage(cmd.Root(), "unknown command %q", strings.Join(args, " "))
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}

// knownCommand is for commands with subcommands. It refuses arguments, because cobra passes only unknown subcommands.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	unknown := fmt.Sprintf("unknown command %q", args[0])
	if cmd.HasParent() {
		unknown += fmt.Sprintf(" for %q", cmd.CommandPath())
	}
	names := command.Each(cmd.Commands(), (*cobra.Command).Name)
	return command.WrongUsage(cmd, "%s%s", unknown, suggest.Hint(args[0], names))
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return command.WrongUsage(cmd, "unexpected argument %q: %q takes none", args[0], cmd.CommandPath())
	}
	return nil
}

// versionInfo is what "patchbay version" prints.
type versionInfo struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	GoVersion string `json:"goVersion"`
	OS        string `json:"os"`
	Arch      string `json:"arch"`
}

func thisVersion() versionInfo {
	build := daemon.ThisBuild()
	return versionInfo{build.Version, build.Commit, runtime.Version(), runtime.GOOS, runtime.GOARCH}
}

func (v versionInfo) String() string {
	return fmt.Sprintf("patchbay %s (commit %s, %s, %s/%s)", v.Version, cmp.Or(v.Commit, "unknown"), v.GoVersion, v.OS, v.Arch)
}

func newVersionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Long:  "Print the version of this program, the commit and the Go release it was built from, and the system it was built for.",
		Example: `  patchbay version
  patchbay version -o json`,
	}
	output := command.AddOutput(cmd, "text")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		info := thisVersion()
		return output.Print(cmd, info, func(w io.Writer) error { return command.WriteLines(w, []string{info.String()}) })
	}
	return cmd
}
