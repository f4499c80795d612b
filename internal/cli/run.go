package cli

import (
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/patchbay-dev/patchbay/daemon"
)

func newRunCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon.",
		Long: `Run the daemon in the foreground: find plugins whose sockets appear in the plugin directories, register them, remember them in the
state file, and answer the other commands on the control socket. The daemon logs to standard error.

Plugins of the types CSIPlugin, DevicePlugin and DRAPlugin are accepted, and those of other types if --accept-type names
them. A plugin of another type is told that there is no handler for it.

SIGINT or SIGTERM ends the daemon; a second one ends it at once. Plugins are not touched, and the next daemon with the same
state file remembers them.`,
		Example: `  # A bench for developing a plugin, without root.
  patchbay run --plugin-dir /tmp/plugins

  # The directory in which the kubelet's plugins register, and a type of one's own.
  patchbay run --plugin-dir /var/lib/kubelet/plugins_registry --accept-type ExamplePlugin`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	var config daemon.Config
	flags := cmd.Flags()
	var dirs []string
	if paths.pluginDir != "" {
		dirs = []string{paths.pluginDir}
	}
	flags.StringArrayVar(&config.PluginDirs, "plugin-dir", dirs, "directory in which plugins put their sockets; can be repeated")
	flags.StringVar(&config.DeprecatedPluginDir, "deprecated-plugin-dir", "",
		"one more plugin directory, in which everything under kubernetes.io/ is ignored")
	flags.StringVar(&config.StatePath, "state", paths.state, "file that remembers the registered plugins")
	flags.StringArrayVar(&config.AcceptTypes, "accept-type", nil,
		"plugin type that is accepted beside CSIPlugin, DevicePlugin and DRAPlugin; can be repeated")
	socket := addControlSocket(cmd, paths)
	level := addChoice(cmd, "log-level", "", "least level that is logged", "info", "debug", "warn", "error")
	format := addChoice(cmd, "log-format", "", "format of the log; auto is text on a terminal and JSON elsewhere", "auto", "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.ControlSocket = *socket
		config.Build = daemon.ThisBuild()
		config.Logger = newLogger(cmd.ErrOrStderr(), level.value, format.value)
		d, err := daemon.New(config)
		if err != nil {
			return wrongUsage(cmd, "%w", err)
		}
		return d.Run(cmd.Context())
	}
	return cmd
}

func newLogger(w io.Writer, level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: map[string]slog.Level{
		"debug": slog.LevelDebug,
		"info":  slog.LevelInfo,
		"warn":  slog.LevelWarn,
		"error": slog.LevelError,
	}[level]}
	if format == "text" || format == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
