// Package host launches plugins as subprocesses, gives each of them the services of the host that its [Controller] grants, and
// asks admission plugins whether packages may be deployed. It follows the host package of the CIPD plugin system.
//
// A launched plugin reads the path of a Unix socket and a ticket from its standard input ([handshake.Handshake]). With both it can call its
// host as described in api/patchbay/plugin/v1. One gRPC server serves all plugins of a [Host]. A plugin does not outlive its host unless
// Survive is set in its [Spec]. The output of a plugin becomes log records.
//
// On Linux each launch sets close-on-exec on all descriptors of this process above 2. This affects programs that are started without this
// package, too: pass descriptors to them explicitly, as with ExtraFiles of [os/exec.Cmd].
//
// The package does not restart plugins; package launcher does. It does not register them: their sockets are discovered like all others.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Host launches plugin subprocesses and accepts calls from them. Its zero value works after [Host.Initialize]. The exported
// fields are set before that and not changed afterwards. All methods are safe for concurrent use. It implements [plugin.Host].
//
// A Host costs nothing before the first launch. From then on it has a watchdog process that kills the plugins when this process dies and,
// once a plugin may call it, a socket in a directory of its own under [os.TempDir], which the watchdog removes.
type Host struct {
	// PluginsContext carries, by [WithLogger], the logger for the records of plugins that are launched without their own logger. If it has
	// none, these records are only kept in [PluginProcess.Logs].
	PluginsContext context.Context //nolint:containedctx // the documented field; only its logger is used

	// Events is called for each [Event], possibly concurrently. It must not block, because calls and launches wait for it. A panic is
	// logged and recovered. It is a function and not a subscription so that no event is lost or late.
	Events func(Event)
	// Logger logs faults of the host itself. Nil for no log.
	Logger *slog.Logger
	// StateDir is the directory in which plugins that survive their host are remembered; see [Spec].Survive and [Host.Adopt].
	StateDir string
	// Cgroup is the directory of the cgroup (version 2) in which a cgroup is created for each plugin; that of this process if it is empty.
	Cgroup string
	// AdmissionTimeout is how long an admission check may take; one minute if it is zero.
	AdmissionTimeout time.Duration

	mu          sync.Mutex // guards the fields below, up to launching
	config      plugin.Config
	initialized bool
	closed      bool
	number      uint64 // number of the newest ticket
	group       *process.Group
	server      *server
	plugins     map[*PluginProcess]struct{}   // plugins that have not ended
	admissions  map[*AdmissionPlugin]struct{} // admission plugins that Close must close
	programs    sealedexec.Cache
	scanned     []scanned // results of scan, newest last

	launching sync.WaitGroup // launches that have not returned
	watching  sync.WaitGroup // goroutines
	release   sync.Once
}

var _ plugin.Host = (*Host)(nil)

// Initialize gives the host its configuration. Call it once, before anything else. A second call and an invalid service URL are errors;
// after Close the error wraps [ErrClosed].
func (h *Host) Initialize(cfg plugin.Config) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return fmt.Errorf("initialize: %w", ErrClosed)
	case h.initialized:
		return errors.New("the plugin host is initialized already")
	case h.AdmissionTimeout < 0:
		return fmt.Errorf("the AdmissionTimeout of the plugin host is %v: use 0 for the default", h.AdmissionTimeout)
	case !utf8.ValidString(cfg.ServiceURL):
		return fmt.Errorf("the service URL %q is not valid UTF-8", cfg.ServiceURL)
	}
	h.config, h.initialized, h.plugins = cfg, true, map[*PluginProcess]struct{}{}
	return nil
}

// Config returns the configuration that was passed to Initialize.
func (h *Host) Config() plugin.Config {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.config
}

// Plugins returns the plugins that were launched or adopted and have not ended, oldest first.
func (h *Host) Plugins() []*PluginProcess {
	h.mu.Lock()
	defer h.mu.Unlock()
	byAge := func(a, b *PluginProcess) int { return cmp.Compare(a.ticket.number, b.ticket.number) }
	isNotRunning := func(p *PluginProcess) bool { return !isClosed(p.started) || p.proc == nil || p.ended() }
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(h.plugins), byAge), isNotRunning)
}

// PluginAt returns the plugin whose PluginSocket is at a path, or in the directory at a path; nil if there is none. The plugin may not have
// been started yet; see [PluginProcess.Started].
func (h *Host) PluginAt(path string) *PluginProcess {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.plugins {
		if p.spec.PluginSocket != "" && (p.spec.PluginSocket == path || filepath.Dir(p.spec.PluginSocket) == path) {
			return p
		}
	}
	return nil
}

// Close concurrently terminates all plugins except those with [Spec].Survive, as [PluginProcess.Terminate] does, aborts pending admission
// checks, and releases all resources. It blocks until the plugins have ended. When ctx is done, it kills them. Nothing can be launched
// afterwards. Close may be called again, to kill the plugins sooner.
func (h *Host) Close(ctx context.Context) {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.launching.Wait()

	h.mu.Lock()
	var ends sync.WaitGroup
	for a := range h.admissions {
		ends.Go(func() { a.Close(ctx) })
	}
	for p := range h.plugins {
		ends.Go(func() { p.leave(ctx) })
	}
	h.mu.Unlock()
	ends.Wait()
	h.release.Do(func() { h.cleanUp(ctx) })
}

func (h *Host) cleanUp(ctx context.Context) {
	h.watching.Wait()
	h.programs.Close()
	h.mu.Lock()
	group, server := h.group, h.server
	h.mu.Unlock()
	var errs []error
	if group != nil {
		errs = append(errs, group.Close(ctx))
	}
	if server != nil {
		errs = append(errs, server.stop())
	}
	if err := errors.Join(errs...); err != nil {
		h.warn("cannot release all that the plugin host had", "error", err)
	}
}

// usable returns an error if the host cannot launch plugins.
func (h *Host) usable() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state()
}

// state is usable for callers that hold mu.
func (h *Host) state() error {
	switch {
	case h.closed:
		return ErrClosed
	case !h.initialized:
		return ErrNotInitialized
	}
	return nil
}

// open creates the group that starts processes. mu is held.
func (h *Host) open() error {
	err := h.state()
	if err == nil && h.group == nil {
		h.group = &process.Group{Logger: h.Logger, Cgroup: h.Cgroup, StateDir: h.StateDir, Leftover: h.leftover}
	}
	return err
}

// serve starts the server that plugins call. Plugins of foreign protocols do not need it. mu is held, and the host is open.
func (h *Host) serve() error {
	if h.server != nil {
		return nil
	}
	s, err := serve(h.emit)
	if err != nil {
		return err
	}
	socket, err := process.Resolve(s.path)
	if err != nil {
		return errors.Join(err, s.stop())
	}
	h.group.Remove(socket, filepath.Dir(socket))
	h.server = s
	return nil
}

func (h *Host) leftover(p *process.Process, pids []int) {
	message := fmt.Sprintf("it left processes behind, which were killed: %v", pids)
	h.emit(Event{Event: plugin.Event{Time: time.Now(), Kind: plugin.EventLeftover, Name: p.Name(), Message: message}, PID: p.PID()})
}

func (h *Host) emit(e Event) {
	if observe := callback.Observer(h.Logger, "Events", h.Events); observe != nil {
		observe(e)
	}
}

func (h *Host) warn(message string, args ...any) {
	if h.Logger != nil {
		h.Logger.Warn(message, args...)
	}
}

var (
	// ErrTerminated is the error of a plugin process that exited with status 0.
	ErrTerminated = errors.New("terminated with 0 exit code")
	// ErrClosed is wrapped by the errors of a [Host] that is closed.
	ErrClosed = errors.New("the plugin host is closed")
	// ErrNotInitialized is wrapped by the errors of a [Host] before [Host.Initialize].
	ErrNotInitialized = errors.New("the plugin host is not initialized")
)

// The errors of admission checks that have no answer of the plugin. They are not cached: a later check asks the plugin again.
var (
	// ErrAborted is wrapped by the error of a check whose plugin was closed, or has ended by itself. In the second case the error wraps
	// [ErrCrashed], too.
	ErrAborted = errors.New("the admission plugin is terminating")
	// ErrCrashed is wrapped by the error of a check whose plugin could not be started, or ended before it answered.
	ErrCrashed error = crashed{}
	// ErrTimeout is wrapped by the error of a check that was not answered in time.
	ErrTimeout = errors.New("the admission plugin has not answered in time")
	// ErrProtocol is wrapped by the error of a check whose plugin speaks another version of the protocol, or breaks it.
	ErrProtocol = errors.New("the admission plugin does not speak the protocol of this host")
	// ErrQueueFull is wrapped by the error of a check if too many others are pending. Its gRPC code is ResourceExhausted.
	ErrQueueFull = status.Error(codes.ResourceExhausted, "too many admission checks are waiting")
)

type crashed struct{}

func (crashed) Error() string { return "the admission plugin ended before it answered" }
func (crashed) Unwrap() error { return ErrAborted }

// Event is an event of a launched plugin. Its Name is [Spec].Name, or empty for a process that does not belong to a plugin.
type Event struct {
	plugin.Event

	// PID is the process of the plugin, or for plugin.EventDenied the process that called; zero if it is not known.
	PID int
	// Err is set for plugin.EventTerminated only; see [PluginProcess.Err].
	Err error
}

type loggerKey struct{}

// WithLogger returns a context that carries the logger for the records of plugins: their output, and what they log through their host. It
// is meant for [Host].PluginsContext and for the contexts of LaunchPlugin and NewAdmissionPlugin. With a nil logger nothing is logged.
func WithLogger(ctx context.Context, logger *slog.Logger) context.Context {
	return context.WithValue(ctx, loggerKey{}, logger)
}

// handlerOf returns the handler of the logger in the first context that carries one; nil if none does.
func handlerOf(contexts ...context.Context) slog.Handler {
	for _, ctx := range contexts {
		if ctx == nil {
			continue
		}
		if logger, ok := ctx.Value(loggerKey{}).(*slog.Logger); ok {
			if logger == nil {
				return nil
			}
			return logger.Handler()
		}
	}
	return nil
}
