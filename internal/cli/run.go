package cli

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
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

Plugins of the types CSIPlugin, DevicePlugin and DRAPlugin are accepted, and those of other types if --handler or --accept-type
names them. A plugin of another type is told that there is no handler for it.

With --http, GET /livez answers 200 as long as the daemon runs, and GET /readyz once the plugin directories have been searched and
nothing is degraded, else 503 with what is not ready; /readyz?verbose lists everything. Only loopback addresses are served.

A configuration file in YAML can say the same as the flags, and more:

  apiVersion: patchbay.dev/v1alpha1
  kind: Config
  pluginDirs: [/run/patchbay/plugins]
  deprecatedPluginDir: /var/lib/kubelet/plugins
  state: /var/lib/patchbay/state.db
  controlSocket: /run/patchbay/control.sock
  http: 127.0.0.1:8080
  handlers: {MyPlugin: accept}
  log: {level: info, format: json}
  timeouts: {dial: 1s, getInfo: 5s, notify: 5s, handler: 1m}
  typeTimeouts:
    MyPlugin: {getInfo: 30s}

A flag that is given goes before the file, as does ` + controlSocketEnv + `; handlers of both count. The default file may be missing.

SIGINT or SIGTERM ends the daemon; a second one ends it at once. Plugins are not touched, and the next daemon with the same
state file remembers them.`,
		Example: `  # A bench for developing a plugin, without root.
  patchbay run --plugin-dir /tmp/plugins

  # The directory in which the kubelet's plugins register, and a type of one's own.
  patchbay run --plugin-dir /var/lib/kubelet/plugins_registry --accept-type ExamplePlugin`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	options := runOptions{config: daemon.Config{Handlers: map[string]daemon.HandlerKind{}}}
	config := &options.config
	flags := cmd.Flags()
	var dirs []string
	if paths.pluginDir != "" {
		dirs = []string{paths.pluginDir}
	}
	configPath := flags.String("config", paths.config, "configuration file")
	flags.StringArrayVar(&config.PluginDirs, "plugin-dir", dirs, "directory in which plugins put their sockets; can be repeated")
	flags.StringVar(&config.DeprecatedPluginDir, "deprecated-plugin-dir", "",
		"one more plugin directory, in which everything under kubernetes.io/ is ignored")
	flags.StringVar(&config.StatePath, "state", paths.state, "file that remembers the registered plugins")
	flags.StringVar(&config.HTTPAddr, "http", "",
		"loopback address and port on which /livez and /readyz are served, for example 127.0.0.1:8080")
	handlers := handlerFlag(config.Handlers)
	flags.Var(handlers, "handler", "what becomes of the plugins of a type; the only kind is accept; can be repeated")
	flags.Var(acceptFlag{handlers}, "accept-type", "the same as --handler TYPE=accept; can be repeated")
	socket := addControlSocket(cmd, paths)
	level := addChoice(cmd, "log-level", "", "least level that is logged", logLevels...)
	format := addChoice(cmd, "log-format", "", "format of the log; auto is text on a terminal and JSON elsewhere", logFormats...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.ControlSocket = *socket
		config.Build = daemon.ThisBuild()
		options.logLevel, options.logFormat = level.value, format.value
		d, err := newDaemon(cmd, options, *configPath)
		if err != nil {
			return err
		}
		return d.Run(cmd.Context())
	}
	return cmd
}

// The words of the flags and of the configuration file; the first of each is the default.
var (
	logLevels  = []string{"info", "debug", "warn", "error"}
	logFormats = []string{"auto", "text", "json"}
)

// runOptions are what flags and the configuration file say.
type runOptions struct {
	config              daemon.Config
	logLevel, logFormat string
}

// newDaemon adds the configuration file to what the flags say.
func newDaemon(cmd *cobra.Command, options runOptions, configPath string) (*daemon.Daemon, error) {
	given := cmd.Flags().Changed
	var found bool
	merged := options
	switch {
	case configPath != "":
		file, exists, err := readConfig(configPath, !given("config"))
		if err != nil {
			return nil, err
		}
		if found = exists; found {
			merged = options.with(file, func(flag string) bool {
				return given(flag) || flag == "control-socket" && os.Getenv(controlSocketEnv) != ""
			})
		}
	case given("config"):
		return nil, wrongUsage(cmd, "the config file has an empty path: name a file")
	}
	merged.config.Logger = newLogger(cmd.ErrOrStderr(), merged.logLevel, merged.logFormat)
	d, err := daemon.New(merged.config)
	if err == nil {
		return d, nil
	}
	// The command line is to blame unless it would do without the file.
	if _, without := daemon.New(options.config); found && without == nil {
		return nil, fmt.Errorf("cannot use config file %s: %w", configPath, err)
	}
	return nil, wrongUsage(cmd, "%w", err)
}

// with returns the options with what the file says and no flag does.
func (o runOptions) with(file runOptions, given func(flag string) bool) runOptions {
	if len(file.config.PluginDirs) > 0 && !given("plugin-dir") {
		o.config.PluginDirs = file.config.PluginDirs
	}
	for _, option := range []struct {
		flag string
		from string
		to   *string
	}{
		{"deprecated-plugin-dir", file.config.DeprecatedPluginDir, &o.config.DeprecatedPluginDir},
		{"state", file.config.StatePath, &o.config.StatePath},
		{"control-socket", file.config.ControlSocket, &o.config.ControlSocket},
		{"http", file.config.HTTPAddr, &o.config.HTTPAddr},
		{"log-level", file.logLevel, &o.logLevel},
		{"log-format", file.logFormat, &o.logFormat},
	} {
		if option.from != "" && !given(option.flag) {
			*option.to = option.from
		}
	}
	handlers := maps.Clone(file.config.Handlers)
	maps.Copy(handlers, o.config.Handlers)
	o.config.Handlers = handlers
	o.config.Timeouts = file.config.Timeouts
	o.config.TypeTimeouts = file.config.TypeTimeouts
	return o
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
