package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/scaffold"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

func newInitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init WHAT",
		Short: "Generate a plugin project",
		Long:  "Generate source code to start from.",
		Example: `  patchbay init plugin disk.example.com --type CSIPlugin
  patchbay init plugin --help`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return command.WrongUsage(cmd, "cannot write a new %q: write \"patchbay init plugin NAME\"", args[0])
			}
			return nil
		},
	}
	cmd.AddCommand(newInitPluginCommand())
	return cmd
}

func newInitPluginCommand() *cobra.Command {
	var options scaffold.Options
	var dir, version string
	cmd := &cobra.Command{
		Use:   "plugin NAME --type TYPE",
		Short: "Generate a plugin project",
		Long: `Generate a Go plugin that builds and passes its tests and "patchbay verify": a service to start from, tests against a real host, a
Makefile, a systemd unit and a README.

A CSIPlugin gets the CSI services Identity and Node, a DevicePlugin and a DRAPlugin the service of their type, and any other type a small
service of its own. NAME is what the plugin announces; its last part names the program.

Existing files are never overwritten. The plugin uses the SDK of this program's version, which Go downloads, or with --replace the one in
a directory with Patchbay's source.`,
		Example: `  # A CSI driver in the directory disk.
  patchbay init plugin disk.example.com --type CSIPlugin
  make -C disk

  # A device plugin for the resource example.com/widget.
  patchbay init plugin example.com/widget --type DevicePlugin --module git.example.com/team/widget --dir .

  # A plugin for a host of your own.
  patchbay init plugin hello --type MyPlugin`,
		Args:              command.Takes("NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Type, "type", "", "plugin type: CSIPlugin, DevicePlugin, DRAPlugin, or one of your own")
	flags.StringVar(&dir, "dir", "", "directory to write to (default: one named after the program, in the current directory)")
	flags.StringVar(&options.Module, "module", "", "path of the Go module (default: example.com/ and the name of the program)")
	flags.StringVar(&version, "sdk-version", "", "version of the SDK (default: that of this program)")
	flags.StringVar(&options.Replace, "replace", "", "build with Patchbay's source in this directory instead of a version")
	command.CompleteFlag(cmd, "type",
		cobra.FixedCompletions([]string{"CSIPlugin", "DevicePlugin", "DRAPlugin"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		options.Name, options.Version = args[0], version
		return writePlugin(cmd, dir, options)
	}
	return cmd
}

// writePlugin writes the source of a plugin. The default version of the SDK is that of this program.
func writePlugin(cmd *cobra.Command, dir string, options scaffold.Options) error {
	named := options.Version != ""
	switch {
	case options.Type == "":
		return command.WrongUsage(cmd, "no type is named: write --type CSIPlugin, DevicePlugin, DRAPlugin or one of your own")
	case options.Replace != "" && named:
		return command.WrongUsage(cmd, "--replace and --sdk-version exclude each other")
	case cmd.Flags().Changed("replace") && options.Replace == "":
		return command.WrongUsage(cmd, "--replace has an empty path: name the directory of Patchbay's source")
	}
	if !named {
		options.Version, _, _ = strings.Cut(daemon.ThisBuild().Version, "+") // the suffix means that the source was modified
	}
	files, err := scaffold.Render(options)
	if errors.Is(err, scaffold.ErrVersion) && !named {
		return errors.New("cannot write a plugin: this program was built from source without a version, so Go cannot download its SDK; " +
			"name the directory of the source with --replace, or a released version with --sdk-version")
	}
	if errors.Is(err, scaffold.ErrOptions) {
		return command.WrongUsage(cmd, "%w", err)
	}
	if err != nil {
		return err
	}
	if dir == "" {
		dir = scaffold.BinaryName(options.Name)
	}
	if err := scaffold.Write(dir, files); err != nil {
		return err
	}
	return printNextSteps(cmd, dir, options, files)
}

// printNextSteps lists the files and the next commands.
func printNextSteps(cmd *cobra.Command, dir string, options scaffold.Options, files []scaffold.File) error {
	lines := []string{fmt.Sprintf("plugin %s/%s is written to %s:", options.Type, options.Name, dir)}
	for _, f := range files {
		lines = append(lines, "  "+filepath.Join(dir, f.Path))
	}
	build := "make"
	if dir != "." {
		build += " -C " + dir
	}
	program, _ := invocation()
	lines = append(lines, "next, build and test it, run a daemon, and start the plugin, so that it registers with the daemon:",
		"  "+build,
		fmt.Sprintf("  %s run --plugin-dir /tmp/plugins --accept-type %s &", program, options.Type),
		"  "+build+" run PLUGIN_DIR=/tmp/plugins",
		filepath.Join(dir, "README.md")+" shows how to call it")
	return command.WriteLines(cmd.OutOrStdout(), lines)
}

// invocation returns the command that runs this program, and whether it was built in a clone, whose version may not be released.
func invocation() (program string, inClone bool) {
	info, _ := debug.ReadBuildInfo()
	return invocationOf(os.Args[0], daemon.ThisBuild().Version, cmp.Or(info, &debug.BuildInfo{}))
}

func invocationOf(name, version string, info *debug.BuildInfo) (program string, inClone bool) {
	stamped := slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs" })
	switch {
	case version == "devel": // as "go run" leaves it
		return "go run ./cmd/patchbay", true
	case stamped && version == info.Main.Version: // by "go build", and not set by the linker
		return name, true
	}
	return "patchbay", false
}
