package cli

import (
	"context"
	"io"
	"log/slog"
	"math"
	"sync"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"

	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/internal/command/config"
	"github.com/patchbay-dev/patchbay/internal/command/doctor"
	"github.com/patchbay-dev/patchbay/internal/systemd"
)

func newRunCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon.",
		Long: `Run the daemon in the foreground: find plugins whose sockets appear in the plugin directories, register them, remember them in the
state file, and answer the other commands on the control socket. The daemon logs to standard error.

Plugins of the types CSIPlugin, DevicePlugin and DRAPlugin are accepted, and those of other types if --handler or --accept-type
names them. A plugin of another type is told that there is no handler for it, on which some exit; with --unhandled ignore it is left alone,
which is for directories in which other hosts have plugins too.

To accept a plugin (--handler TYPE=accept) is to register it and no more. --handler CSIPlugin=csi starts using CSI drivers: it waits until
they are ready, asks what they are and what they know of this node, and registers them as csi-node and csi-controller too.
--handler DevicePlugin=device keeps the list of the devices of device plugins up to date and allocates them; see "patchbay help devices".
--handler DRAPlugin=dra connects to drivers for dynamic resource allocation, of both versions, and follows the health of their devices.

With --http, GET /livez answers 200 as long as the daemon runs, and GET /readyz once the plugin directories have been searched and
nothing is degraded, else 503 with what is not ready; /readyz?verbose lists everything. Only loopback addresses are served.

A configuration file can say the same as the flags, and more; "patchbay help config" says how they go together. A flag goes before the
environment variable that is named like it, such as ` + envOf("state") + ` for --state, and both go before the file; handlers of all count.
The default file may be missing.

SIGHUP reloads the configuration; see "patchbay help reload". SIGINT or SIGTERM ends the daemon; a second one ends it at once. Plugins
that it launched end with it, unless they are configured to survive. Others are not touched, and the next daemon with the same state file
remembers them.`,
		Example: `  # A bench for developing a plugin, without root.
  patchbay run --plugin-dir /tmp/plugins

  # The directory in which the kubelet's plugins register, and a type of one's own.
  patchbay run --plugin-dir /var/lib/kubelet/plugins_registry --accept-type ExamplePlugin`,
	}
	flags := addConfigFlags(cmd, paths)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		hangups := claimHangups(cmd.Context()) // before the files are read, so that no change to them is missed
		sources, err := flags.sources(cmd)
		if err != nil {
			return err
		}
		return runDaemon(cmd, sources, hangups)
	}
	return cmd
}

// runDaemon runs the daemon that is configured by the sources, and reads them again whenever it is to reload.
func runDaemon(cmd *cobra.Command, sources config.Sources, hangups <-chan struct{}) error {
	_, c, err := load(sources)
	if err != nil {
		return blame(cmd, err)
	}
	c.Logger, c.SetLog = newLogger(cmd.ErrOrStderr(), c.Log)
	logLostTraces(c.Logger)
	if err := takePassed(&c); err != nil {
		return err
	}
	c.Load = func() (daemon.Config, error) {
		_, next, err := load(sources)
		if c.ControlListener != nil {
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
			c.Logger.Warn("another process watches the plugin directory: if it is a host too, both register what is there, and each refuses "+
				"what it has no handler for; give each a directory of its own, or both unhandled: ignore", "dir", dir, "watchers", watchers)
		}
	}
	return runReloading(cmd.Context(), d, hangups)
}

// logLostTraces has what OpenTelemetry cannot do logged like everything else. Otherwise it writes lines of its own to standard error.
func logLostTraces(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are lost", "error", err) }))
}

// takePassed takes what the service manager passed: sockets by the names control and http, and whom to notify.
func takePassed(c *daemon.Config) (err error) {
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

// runReloading runs a daemon and has it reload at each hangup. Several that come together are one.
func runReloading(ctx context.Context, d *daemon.Daemon, hangups <-chan struct{}) error {
	watching, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-watching.Done():
				return
			case <-hangups:
				_, _ = d.Reload(watching) // the daemon logs what became of it
			}
		}
	})
	defer watch.Wait()
	defer cancel()
	return d.Run(ctx)
}

// silent is a level that no record has.
const silent = slog.Level(math.MaxInt)

// newLogger returns a logger, and a function that sets its level and format, for all loggers that were made of it too.
func newLogger(w io.Writer, as daemon.Log) (log *slog.Logger, set func(daemon.Log)) {
	text, json := new(slog.LevelVar), new(slog.LevelVar)
	set = func(as daemon.Log) {
		used, unused := json, text
		if as.Format == "text" || as.Format == "auto" && isTerminal(w) {
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
