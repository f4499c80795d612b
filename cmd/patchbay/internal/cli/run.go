package cli

import (
	"context"
	"io"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/doctor"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/hangup"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
	"github.com/patchbay-dev/patchbay/internal/systemd"
)

// runCommand is the command that reloads on SIGHUP.
const runCommand = "run"

func newRunCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   runCommand,
		Short: "Run the daemon",
		Long: `Run the daemon in the foreground: discover plugins by their sockets in the plugin directories, register them, remember them in the
state file, and serve the other commands on the control socket. The daemon logs to standard error.

The daemon accepts plugins of the types CSIPlugin, DevicePlugin and DRAPlugin, and of the types in --handler and --accept-type. Plugins of
other types are refused, which makes some exit. With --unhandled ignore they are left alone; use it for directories shared with other
hosts.

--handler TYPE=accept only registers a plugin. --handler CSIPlugin=csi also waits until a CSI driver is ready, asks for its identity and its
information about this node, and registers it as csi-node and csi-controller too. --handler DevicePlugin=device tracks and allocates the
devices of device plugins; see "patchbay help devices". --handler DRAPlugin=dra connects to drivers for dynamic resource allocation, v1 and
v1beta1, and follows the health of their devices.

With --http, GET /livez returns 200 while the daemon runs. GET /readyz returns 200 once the plugin directories have been searched and
nothing is degraded, and otherwise 503 with the reason; /readyz?verbose lists every check. Only loopback addresses are allowed.

A configuration file can set everything the flags can, and more; see "patchbay help config". A flag overrides the environment variable of
that name, such as ` + command.EnvOf("state") +
			` for --state, and both override the file; handlers from all three are combined. The default file
may be missing.

SIGHUP reloads the configuration; see "patchbay help reload". SIGINT or SIGTERM shuts the daemon down; a second one ends it immediately.
Launched plugins end with it unless they are configured to survive. Other plugins are not touched, and the next daemon with the same state
file remembers them.`,
		Example: `  # For plugin development, without root.
  patchbay run --plugin-dir /tmp/plugins

  # The kubelet's plugin directory, and a type of your own.
  patchbay run --plugin-dir /var/lib/kubelet/plugins_registry --accept-type ExamplePlugin`,
	}
	flags := command.AddConfigFlags(cmd, paths)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		sources, err := flags.Sources(cmd)
		if err != nil {
			return err
		}
		return runDaemon(cmd, sources)
	}
	return cmd
}

// boundMemory sets the memory limit of the garbage collector to four fifths of the limit of the control group. The rest is for memory that
// the collector does not control, and for plugins in the same group.
func boundMemory(system cgroupfs.System) {
	if bytes, bounded := system.Memory(); bounded {
		debug.SetMemoryLimit(bytes / 5 * 4)
	}
}

// runDaemon runs a daemon that is configured by the sources. A reload reads them again.
func runDaemon(cmd *cobra.Command, sources config.Sources) error {
	loaded, err := command.Load(sources)
	if err != nil {
		return command.Blame(cmd, err)
	}
	c := daemon.Options{Loaded: *loaded, Build: daemon.ThisBuild()}
	c.Logger, c.SetLog = newLogger(cmd.ErrOrStderr(), c.Log)
	logLostTraces(c.Logger)
	if system, err := cgroupfs.Self(); err == nil && os.Getenv("GOMEMLIMIT") == "" {
		boundMemory(system)
	}
	if err := takePassed(&c); err != nil {
		return err
	}
	c.Load = func() (*config.Loaded, error) {
		next, err := command.Load(sources)
		if err == nil && c.ControlListener != nil {
			next.ControlSocket = c.ControlSocket
		}
		return next, err
	}
	d, err := daemon.New(c)
	if err != nil {
		return err
	}
	for _, dir := range c.PluginDirs {
		if watchers := doctor.Watchers(cmd.Context(), dir); len(watchers) > 0 {
			c.Logger.Warn("another process watches the plugin directory: if it is a host too, both register the plugins there, and each refuses "+
				"types without a handler; use separate directories, or set unhandled: ignore in both", "dir", dir, "watchers", watchers)
		}
	}
	return runReloading(cmd.Context(), d)
}

// logLostTraces logs errors of OpenTelemetry, which otherwise writes to standard error.
func logLostTraces(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are lost", "error", err) }))
}

// takePassed takes the sockets named control and http, and the notification socket, from the service manager.
func takePassed(c *daemon.Options) (err error) {
	sockets := systemd.Inherited()
	c.Notifier = systemd.TakeNotifier()
	if c.ControlListener, err = sockets.Take("control"); err != nil {
		return err
	}
	if c.ControlListener != nil {
		c.ControlSocket = c.ControlListener.Addr().String()
	}
	c.HTTPListener, err = sockets.Take("http")
	return err
}

// runReloading runs a daemon that reloads at each SIGHUP, including one that arrived before, because the files may have been read already.
func runReloading(ctx context.Context, d *daemon.Daemon) error {
	watching, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-watching.Done():
				return
			case <-hangup.Signals:
				_, _ = d.Reload(watching) // the daemon logs the result
			}
		}
	})
	defer watch.Wait()
	defer cancel()
	return d.Run(ctx)
}

// silent is a level above that of all records.
const silent = slog.Level(math.MaxInt)

// newLogger returns a logger, and a function that changes the level and format of the logger and all loggers derived from it.
func newLogger(w io.Writer, as config.Log) (log *slog.Logger, set func(config.Log)) {
	text, json := new(slog.LevelVar), new(slog.LevelVar)
	set = func(as config.Log) {
		used, unused := json, text
		if as.Format == "text" || as.Format == "auto" && console.IsTerminal(w) {
			used, unused = text, json
		}
		unused.Set(silent)
		_ = used.UnmarshalText([]byte(as.Level)) // the words of the configuration are those of slog
	}
	set(as)
	return slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(w, &slog.HandlerOptions{Level: text}), slog.NewJSONHandler(w, &slog.HandlerOptions{Level: json}),
	)), set
}
