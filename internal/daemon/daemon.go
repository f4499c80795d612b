// Package daemon runs Patchbay as a program. A [Daemon] opens the saved state, runs a [pluginruntime.Runtime] over the plugin directories,
// serves the control API on a Unix socket, and optionally serves HTTP on a loopback address.
//
// A running daemon can change to another configuration, completely or not at all; see [Daemon.Reload]. The program reads the configuration.
//
// This package is the only one that knows all parts. It starts them so that a failed start leaves nothing behind and does not disturb
// another daemon. It has no logic of discovery or registration, parses no flags and prints nothing. A program that needs plugins without a
// control socket uses patchbay.Runtime, the public face of [pluginruntime.Runtime].
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/controlapi"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
	"github.com/patchbay-dev/patchbay/internal/daemon/resolver"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/daemon/stablesocket"
	"github.com/patchbay-dev/patchbay/internal/daemon/telemetry"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	controlDirMode = 0o755
	controlMode    = 0o660
)

// Daemon runs Patchbay. Make one with [New] and call its Run.
type Daemon struct {
	options Options
	log     *slog.Logger
	ready   chan struct{}
	// timeouts are the client timeouts by TYPE or TYPE/NAME.
	timeouts atomic.Pointer[map[string]time.Duration]
	reloads  *reloads
	// metadata is the metadata of launched plugins in the catalogue.
	metadata metadata
	// goPlugins are the connections to plugins of go-plugin.
	goPlugins goplugin.Connections
}

// New returns a daemon. Its error lists everything that is wrong with the options. It does not open files or sockets; Run does. Relative
// paths are relative to the current working directory.
func New(c Options) (*Daemon, error) {
	if err := makeAbsolute(&c.Loaded); err != nil {
		return nil, err
	}
	if err := errors.Join(Validate(c.Loaded), c.checkPassed()); err != nil {
		return nil, err
	}
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{options: c, log: log, ready: make(chan struct{}), reloads: newReloads(c.Loaded)}
	d.timeouts.Store(&c.ClientTimeouts)
	return d, nil
}

// Ready is closed when the control socket is served and the plugins that existed at the start have been discovered.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Run runs the daemon until ctx is done, and returns when everything it started has ended. It may be called once. It returns nil after an
// orderly stop, and an error if the daemon could not start or continue. A start does not disturb another daemon that owns the control
// socket, the state or the HTTP address: it fails without leaving a file, and the error wraps [sock.ErrInUse] or names what is in use. A
// start that fails later, because a handler or the catalogue cannot be used, may leave a new, empty state file.
//
// Plugins stay registered in the state when Run ends: the next daemon restores them.
//
// As process 1, for example in a container, Run also reaps adopted processes. While Run runs, such a program must not start processes, for
// example with package os/exec: their exit status would be lost.
func (d *Daemon) Run(ctx context.Context) (err error) {
	defer d.reloads.end()
	var parts closers
	defer func() { err = errors.Join(err, parts.close()) }()
	l, err := d.listen(ctx, &parts)
	if err != nil {
		return err
	}
	a, err := d.assemble(l, &parts)
	if err != nil {
		return err
	}
	d.log.Info("patchbay is running", "version", d.options.Build.Version, "pid", os.Getpid(), "pluginDirs", d.options.PluginDirs,
		"deprecatedPluginDir", d.options.DeprecatedPluginDir, "controlSocket", d.options.ControlSocket, "state", d.options.State,
		"handlers", handlerKinds(&d.options.Config))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go process.ReapAdopted(ctx)
	d.reloads.begin(a)
	leaveFleet := func() {}
	if a.node != nil {
		leaveFleet = inBackground(ctx, a.node.Run)
	}
	control := d.serve(ctx, l, a, &parts, cancel)
	// Serve calls until the runtime has ended, so that "patchbay status" shows a handler that delays the end.
	stopDispense, stopStateWatch := func() {}, a.seen.state.start(ctx, a.runtime.Publish)
	if a.seen.dispense != nil {
		stopDispense = inBackground(ctx, a.seen.dispense.Run)
	}
	err = d.run(ctx, a.runtime)
	stopDispense()
	stopStateWatch()
	d.reloads.end()
	control.EndCalls()
	leaveFleet()
	err = errors.Join(err, parts.close())
	d.log.Info("patchbay has stopped")
	return err
}

// notify sends assignments to the service manager. It logs errors.
func (d *Daemon) notify(assignments ...string) { d.warn(d.options.Notifier.Notify(assignments...)) }

// beat notifies the watchdog of the service manager until ctx is done, while discovery and registration respond. A plugin or handler that
// hangs does not count.
func (d *Daemon) beat(ctx context.Context, runtime *pluginruntime.Runtime) {
	interval := d.options.Notifier.Watchdog() / 2
	if interval <= 0 {
		return
	}
	for ctx.Err() == nil {
		next := time.Now().Add(interval)
		check, cancel := context.WithTimeout(ctx, interval)
		err := runtime.Check(check)
		cancel()
		switch {
		case err == nil:
			d.notify("WATCHDOG=1")
		case ctx.Err() == nil:
			d.log.Error("cannot tell the service manager that the daemon is alive", "error", err)
		}
		backoff.Pause(ctx, time.Until(next))
	}
}

// run runs the runtime until ctx is done or an error occurs, notifies the service manager, and returns when the runtime has ended.
func (d *Daemon) run(ctx context.Context, runtime *pluginruntime.Runtime) error {
	ran := make(chan error, 1)
	go func() { ran <- runtime.Run(ctx) }()
	defer context.AfterFunc(ctx, func() { d.notify("STOPPING=1") })()
	select {
	case <-runtime.Ready():
	case err := <-ran:
		return err
	}
	plugins := len(runtime.Plugins())
	d.log.Info("plugin directories have been searched", "plugins", plugins)
	close(d.ready)
	d.notify("READY=1", fmt.Sprintf("STATUS=%d plugins were there at the start.", plugins))
	defer inBackground(ctx, func(ctx context.Context) { d.beat(ctx, runtime) })()
	return <-ran
}

// listening has the parts of a daemon that are made before the state is opened: those that another daemon may own, or whose configuration
// may be wrong.
type listening struct {
	roles  access.Policy
	traced pluginruntime.Observer
	// http and fleet are nil if they are not configured.
	control, http, fleet net.Listener
	// stopControl stops the server of control, or closes control.
	stopControl func() error
}

// listen does everything that can fail before any file is made. It locks the control socket before the state is opened, so that a second
// daemon never opens the state.
func (d *Daemon) listen(ctx context.Context, parts *closers) (_ *listening, err error) {
	l := &listening{}
	if l.roles, err = access.NewPolicy(d.options.Control.Roles); err != nil {
		return nil, err
	}
	if l.http, err = d.options.listenHTTP(); err != nil {
		return nil, err
	}
	parts.addListener(l.http)
	if l.fleet, err = node.Listen(ctx, d.options.Fleet); err != nil {
		return nil, err
	}
	parts.addListener(l.fleet)
	var stopTracing func() error
	if l.traced, stopTracing, err = telemetry.StartTracing(d.options.Tracing, d.options.Build.Version); err != nil {
		return nil, err
	}
	parts.add(func() error { d.warn(stopTracing()); return nil })
	if err := d.makeDirs(); err != nil {
		return nil, err
	}
	if l.control, err = d.listenControl(); err != nil {
		return nil, err
	}
	// The socket is removed last, so that a second daemon fails on the socket and not on the state file.
	l.stopControl = l.control.Close
	parts.add(func() error { return l.stopControl() })
	return l, nil
}

// assembly has the parts of a daemon.
type assembly struct {
	handlers *handlerSet
	metrics  *telemetry.Metrics
	conns    *limits.Connections
	// calls bounds calls to plugins by callers on this machine, nodeCalls those by other nodes, and requests those to the control API.
	calls, nodeCalls, requests *h2proxy.Budget
	runtime                    *pluginruntime.Runtime
	names                      *resolver.Resolver
	guard                      *access.Authorizer
	node                       *node.Node // nil if the node does not belong to a fleet
	// registry connects to plugins; for exclusive plugins of a fleet it obtains the lock first.
	registry proxy.Connector
	seen     observed
}

// assemble makes the parts of the daemon. It starts only the launched plugins that start automatically.
func (d *Daemon) assemble(l *listening, parts *closers) (*assembly, error) {
	state, err := boltstate.Open(d.options.State)
	if err != nil {
		return nil, server.AdviseOnPath(err, "state file")
	}
	parts.add(state.Close)
	stateWatch := newStateWatch(d.options.State, state.Check, d.log)
	state.OnFailure(stateWatch.failed)
	a := &assembly{handlers: &handlerSet{
		log: d.log, state: state, pluginDir: d.options.PluginDirs[0], deviceSocketDir: d.options.Device.SocketDir,
	}}
	a.metrics = telemetry.NewMetrics(d.options.Build.Version, d.options.Build.Commit, a.handlers)
	files, self := limits.OpenFiles(), uint32(os.Geteuid())
	a.calls = limits.NewBudget("calls of plugins", limits.Calls(files), self, a.metrics.CallsLimited, d.log)
	a.nodeCalls = limits.NewBudget("calls from other nodes", limits.NodeCalls(files), self, a.metrics.CallsLimited, d.log)
	a.requests = limits.NewBudget("requests to the control API", controlapi.RequestLimits, self, a.metrics.CallsLimited, d.log)
	a.conns = limits.NewConnections(self, files, a.calls, a.metrics.ConnsRefused, d.log)
	if a.runtime, err = d.newRuntime(state, a.metrics, l.traced); err != nil {
		return nil, err
	}
	a.names = resolver.New(a.runtime, a.runtime.Launcher(), a.runtime.Registry(), a.handlers)
	a.guard = access.NewAuthorizer(d.options.ControlSocket, l.roles, access.NewAuditor(a.runtime.Publish, d.log))
	if node.IsEnabled(d.options.Fleet) {
		a.node = &node.Node{
			Fleet: d.options.Fleet, State: d.options.State, Version: d.options.Build.Version, Registry: a.runtime.Registry(),
			Health: a.names, Called: a.metrics.Called, Served: a.metrics.Served, Events: a.runtime, Log: d.log,
		}
		if err := a.node.Init(); err != nil {
			return nil, err
		}
	}
	parts.add(a.node.Close)
	a.registry = a.node.Exclusive(a.runtime.Registry())
	var dispense *stablesocket.Sockets
	if d.options.DispenseDir != "" {
		dispense = &stablesocket.Sockets{
			Dir: d.options.DispenseDir, Registry: a.runtime.Registry(), Calls: a.registry, InFleet: inFleet(a.node, d.options.Fleet.Dispense),
			Conns: a.conns, Budget: a.calls, Log: d.log,
		}
		if err := dispense.Init(); err != nil {
			return nil, err
		}
	}
	a.seen = observed{Runtime: a.runtime, reloads: d.reloads, dispense: dispense, state: stateWatch, files: &fileLimit{}, node: a.node}
	if err := a.node.Publish(a.seen, l.fleet); err != nil {
		return nil, err
	}
	a.metrics.Watch(a.seen, a.runtime.Launcher(), d.options.State)
	a.metrics.WatchNode(a.node)
	parts.add(a.handlers.close)
	added, _, err := a.handlers.changes(nil, handlerKinds(&d.options.Config))
	if err != nil {
		return nil, err
	}
	a.exchange(added, nil)
	return a, d.launch(a.runtime, d.options.Catalogue)
}

// serve starts the servers and returns that of the control socket. A server that fails calls failed.
func (d *Daemon) serve(ctx context.Context, l *listening, a *assembly, parts *closers, failed func()) (controlServer *server.Server) {
	api := &controlapi.API{
		Settings: d.options.Config, Version: d.options.Build.Version, Commit: d.options.Build.Commit, Daemon: d, Runtime: a.seen,
		Launcher: a.runtime.Launcher(), Names: a.names, Handlers: a.handlers, Node: a.node, Catalogue: &d.metadata,
		Registry: keeper.Of[*dynamicplugins.PluginInfo](a.runtime.Registry()), Metrics: a.metrics, Connector: a.registry, Authorizer: a.guard,
		Requests: a.requests, Calls: a.calls, ListsRefused: a.metrics.ListsRefused, Logger: d.log,
	}
	controlServer = api.Serve(a.conns.Bound(l.control, "control", a.guard), failed)
	l.stopControl = controlServer.Stop
	if l.http != nil {
		d.log.Info("serving HTTP", "address", l.http.Addr().String())
		served := telemetry.Pages{Scanned: a.runtime.Ready(), Readiness: readiness{a.seen}, Metrics: a.metrics.Handler(),
			Status: page.New(api.Page())}
		parts.add(telemetry.ServeHTTP(l.http, served, failed, d.log).Stop)
	}
	if l.fleet != nil {
		d.log.Info("taking calls from other nodes", "address", l.fleet.Addr().String(), "rules", len(d.options.Fleet.Serve.Allow))
		parts.add(a.node.Serve(ctx, a.conns.Bound(l.fleet, "fleet", nil), a.nodeCalls, failed))
	}
	return controlServer
}

// inFleet returns the connectors of the plugins whose stable socket reaches the whole fleet.
func inFleet(n *node.Node, plugins []string) map[plugin.Name]proxy.Connector {
	all := map[plugin.Name]proxy.Connector{}
	for _, text := range plugins {
		if name, ok := plugin.ParseName(text); ok && n != nil {
			all[name] = n.Connector()
		}
	}
	return all
}

// newRuntime makes the runtime.
func (d *Daemon) newRuntime(state *boltstate.Store, metrics *telemetry.Metrics, traced pluginruntime.Observer) (*pluginruntime.Runtime,
	error) {
	observer := metrics.Observer()
	observer.Tracer, observer.StatsHandlers = traced.Tracer, append(observer.StatsHandlers, traced.StatsHandlers...)
	c, b := d.options, d.options.Bounds
	runtime := &pluginruntime.Runtime{
		Watcher: &pipeline.Watcher{
			Dirs:          c.PluginDirs,
			DeprecatedDir: c.DeprecatedPluginDir,
			MaxDepth:      b.MaxDepth,
			MaxSockets:    b.MaxSockets,
			MaxUserDirs:   b.MaxUserDirs,
			MaxDirs:       b.MaxDirs,
			Registration: reconciler.Config{
				Timeouts:     c.Timeouts,
				TypeTimeouts: c.TypeTimeouts,
				Bounds: limits.Plugins(plugin.Bounds{
					Text: b.Text, Versions: b.Versions, UserBytes: b.UserBytes, TotalBytes: b.TotalBytes,
				}, limits.OpenFiles()),
				ClientTimeout:    d.clientTimeout,
				UnreachableGrace: c.UnreachableGrace,
				NameGrace:        cmp.Or(c.Trust.NameGrace, -1),
				IgnoreUnhandled:  c.Unhandled == "ignore",
			},
		},
		State:           metrics.Storage(state),
		TrustPolicy:     c.Trust.Policy(),
		NewAdmission:    admission(c.Admission, d.log),
		LaunchedOnly:    c.Admission.LaunchedOnly,
		RegistryOptions: []dynamicplugins.Option{dynamicplugins.WithConnections(&d.goPlugins)},
		HostConfig:      plugin.Config{Repository: &d.metadata},
		SurvivorDir:     c.State + ".survivors",
		EventsPath:      c.State + ".events",
		Observer:        observer,
		Logger:          d.log,
	}
	err := runtime.Open()
	return runtime, err
}

// warn logs an error that does not prevent an orderly stop.
func (d *Daemon) warn(err error) {
	if err != nil {
		d.log.Warn(err.Error())
	}
}

// closers are functions that are called at the end, in reverse order.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

// addListener adds a listener, which may be nil or already closed.
func (c *closers) addListener(l net.Listener) {
	if l != nil {
		c.add(func() error { _ = l.Close(); return nil })
	}
}

func (c *closers) close() error {
	var errs []error
	for _, f := range slices.Backward(*c) {
		errs = append(errs, f())
	}
	*c = nil
	return errors.Join(errs...)
}

// inBackground calls run in a goroutine. stop ends the context of run and waits until run has returned.
func inBackground(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// makeDirs creates the missing directories and checks that the plugin directories can be read.
func (d *Daemon) makeDirs() error {
	if err := os.MkdirAll(filepath.Dir(d.options.ControlSocket), controlDirMode); err != nil {
		return fmt.Errorf("cannot create the directory of the control socket: %w; choose another control socket", err)
	}
	return pipeline.MakeDirs(d.options.AllPluginDirs())
}

// listenControl returns a listener on the control socket, either passed by the service manager or new.
func (d *Daemon) listenControl() (net.Listener, error) {
	if passed := d.options.ControlListener; passed != nil {
		d.log.Info("the control socket was passed by the service manager", "controlSocket", d.options.ControlSocket)
		return passed, nil
	}
	l, err := sock.Listen(d.options.ControlSocket, controlMode)
	if err != nil {
		return nil, server.AdviseOnPath(fmt.Errorf("cannot serve the control API: %w", err), "control socket")
	}
	return l, nil
}

// listenHTTP returns the listener for HTTP; nil if it is not configured.
func (c *Options) listenHTTP() (net.Listener, error) {
	if c.HTTPListener != nil {
		return c.HTTPListener, nil
	}
	if c.HTTP == "" {
		return nil, nil
	}
	addr, err := telemetry.ParseHTTPAddr(c.HTTP)
	if err != nil {
		return nil, err
	}
	// gofail: var daemonHTTP string
	// return nil, fmt.Errorf("cannot serve HTTP: %s; choose another address", daemonHTTP)
	listener, err := server.ListenTCP(context.Background(), addr.String())
	if err != nil {
		return nil, fmt.Errorf("cannot serve HTTP: %w; choose another address", err)
	}
	return listener, nil
}
