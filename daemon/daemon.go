package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

const (
	controlDirMode = 0o755
	controlMode    = 0o660
)

// Daemon runs Patchbay. Make one with [New] and call its Run.
type Daemon struct {
	config Config
	log    *slog.Logger
	ready  chan struct{}
	// timeouts are those for calls to plugins.
	timeouts clientTimeouts
	reloads  *reloads
	handlers handlerSet
	// metadata is what launched plugins are told of the catalogue.
	metadata metadata
	// goPlugins is how the plugins of go-plugin are reached.
	goPlugins goplugin.Connections
}

// New checks the configuration. It touches neither files nor sockets; Run does.
func New(config Config) (*Daemon, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	log := config.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{config: config, log: log, ready: make(chan struct{}), reloads: newReloads(config),
		handlers: handlerSet{byType: map[string]cache.PluginHandler{}}}
	d.timeouts.set(config.ClientTimeouts)
	return d, nil
}

// Ready is closed when the control socket is served and the plugins that were there at the start have been found.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Run runs the daemon until ctx ends, and returns when all that it started has ended. It may be called once. It returns nil after an
// orderly end, and an error if the daemon could not start or could not go on. A start that fails leaves no file behind and does not
// disturb a daemon that owns the control socket, the state or the HTTP address already; the error then wraps [sock.ErrInUse] or says what
// is in use.
//
// Plugins stay registered in the state when Run ends: the next daemon restores them.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.reloads.end()
	// Whatever can fail without making a file comes first, and the control socket before the state: its lock is what keeps a
	// second daemon from looking at the state at all.
	httpListener, err := d.config.listenHTTP()
	if err != nil {
		return err
	}
	if httpListener != nil {
		defer httpListener.Close() // a second time if it was served
	}
	if err := d.makeDirs(); err != nil {
		return err
	}
	listener, err := sock.Listen(d.config.ControlSocket, controlMode)
	if err != nil {
		return advise(fmt.Errorf("cannot serve the control API: %w", err), "control socket")
	}
	state, err := boltstate.Open(d.config.StatePath)
	if err != nil {
		return errors.Join(advise(err, "state file"), listener.Close())
	}
	runtime, err := patchbay.New(patchbay.Config{
		PluginDirs:          d.config.PluginDirs,
		DeprecatedPluginDir: d.config.DeprecatedPluginDir,
		State:               state,
		Timeouts:            d.config.Timeouts,
		TypeTimeouts:        d.config.TypeTimeouts,
		Bounds:              d.config.Bounds,
		MaxDepth:            d.config.MaxDepth,
		MaxSockets:          d.config.MaxSockets,
		UnreachableGrace:    d.config.UnreachableGrace,
		ClientTimeout:       d.timeouts.of,
		Admission:           d.admission(),
		RegistryOptions:     []dynamicplugins.Option{dynamicplugins.WithDialer(d.goPlugins.Dial)},
		Host:                plugin.Config{Repository: &d.metadata},
		SurvivorDir:         d.config.StatePath + ".survivors",
		Logger:              d.log,
	})
	if err != nil {
		return errors.Join(err, state.Close(), listener.Close())
	}
	handlers := d.config.handlers()
	d.handlers.needs = handlerNeeds{log: d.log, state: state, pluginDirs: d.config.PluginDirs, registry: runtime.Registry()}
	for ptype, kind := range handlers {
		h, err := d.handlers.make(ptype, kind)
		if err != nil {
			return errors.Join(err, d.handlers.close(), state.Close(), listener.Close())
		}
		d.handlers.use(ptype, h)
		runtime.AddHandler(ptype, h)
	}

	if err := d.launch(runtime, d.config.Catalogue); err != nil {
		return errors.Join(err, d.handlers.close(), state.Close(), listener.Close())
	}
	d.log.Info("patchbay is running", "version", d.config.Build.Version, "pid", os.Getpid(), "pluginDirs", d.config.PluginDirs,
		"deprecatedPluginDir", d.config.DeprecatedPluginDir, "controlSocket", d.config.ControlSocket, "state", d.config.StatePath,
		"handlers", handlers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.reloads.begin(runtime)
	seen := observed{Runtime: runtime, reloads: d.reloads}
	server := serve(listener, newGuard(d.config.ControlSocket),
		&control{source: seen, launched: runtime.Launcher(), reload: d.Reload, build: d.config.Build, started: time.Now()}, cancel, d.log)
	stopHTTP := func() error { return nil }
	if httpListener != nil {
		d.log.Info("serving HTTP", "address", httpListener.Addr().String())
		stopHTTP = serveHealth(httpListener, health{scanned: runtime.Ready(), conditions: runtime.Conditions}, cancel, d.log).stop
	}
	// Calls are answered until the runtime has ended: if a handler holds it up, "patchbay status" shows which.
	err = d.run(ctx, runtime)
	d.reloads.end()
	server.endCalls()
	// The socket goes last: as long as it is there, a daemon that starts is told of this one, and not of a state file in use.
	err = errors.Join(err, stopHTTP(), d.handlers.close(), state.Close(), server.stop())
	d.log.Info("patchbay has stopped")
	return err
}

// run runs the runtime until ctx ends or something fails, and returns when the runtime has ended.
func (d *Daemon) run(ctx context.Context, runtime *patchbay.Runtime) error {
	ran := make(chan error, 1)
	go func() { ran <- runtime.Run(ctx) }()
	var err error
	select {
	case <-runtime.Ready():
		d.log.Info("plugin directories have been searched", "plugins", len(runtime.Plugins()))
		close(d.ready)
		err = <-ran
	case err = <-ran:
	}
	return err
}

// makeDirs makes the directories that are missing and makes sure that the plugin directories can be read.
func (d *Daemon) makeDirs() error {
	if err := os.MkdirAll(filepath.Dir(d.config.ControlSocket), controlDirMode); err != nil {
		return fmt.Errorf("cannot make the directory of the control socket: %w; choose another control socket", err)
	}
	return pluginwatcher.MakeDirs(d.config.pluginDirs())
}

// advise adds to an error of permission what to do about it.
func advise(err error, what string) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w; let user %d write there or choose another %s", err, os.Geteuid(), what)
}
