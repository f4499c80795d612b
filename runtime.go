package patchbay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Config configures a [Runtime]. One plugin directory is enough.
type Config struct {
	// PluginDirs are the directories where plugins create their sockets. Missing ones are created with mode 0750. None may contain another.
	PluginDirs []string
	// DeprecatedPluginDir is where older plugins create their sockets; empty for none. Its subdirectory kubernetes.io/ is ignored.
	DeprecatedPluginDir string
	// Handlers are the handlers of plugin types, as if passed to [Runtime.AddHandler] before Run.
	Handlers map[string]cache.PluginHandler
	// State stores registrations across restarts, for example a dynamicplugins/boltstate.Store. If nil, nothing is remembered. The caller
	// closes it after Run has returned.
	State dynamicplugins.StateStorage
	// Dispensers create the clients that Registry().DispensePlugin returns, by plugin type.
	Dispensers map[string]dynamicplugins.PluginDispenser
	// RegistryOptions are further options of the registry, for example dispensers on shared connections.
	RegistryOptions []dynamicplugins.Option
	// Limits bound what plugins may cost; the zero value has the defaults.
	Limits Limits
	// ClientTimeout returns the timeout for calls to a plugin, which its handler receives; nil for none. May be nil.
	ClientTimeout func(pluginType, pluginName string) *time.Duration
	// UnreachableGrace is how long a plugin stays registered after its socket stops accepting (default 0: not at all).
	UnreachableGrace time.Duration
	// NameGrace is how long a name stays reserved for its user after its last instance is gone (default 10 minutes; negative: not at all).
	// During this time, plugins of other users with that name are refused with the reason, except those of root, of this process's user,
	// and a plugin that the Launcher launched under exactly that name. It does not apply to types with Supersede in Trust. It holds across
	// restarts if State stores PluginChange.Reservation, as dynamicplugins/boltstate does. At most 256 names per user are reserved,
	// dropping the oldest first, and 4,096 in total.
	NameGrace time.Duration
	// IgnoreUnhandled ignores plugins of a type without a handler: they are asked for their type and name, are sent nothing else, and are
	// registered as soon as there is a handler. Use it if the host shares a directory with another host. Otherwise they are sent a refusal,
	// which makes some plugins exit.
	IgnoreUnhandled bool
	// Host describes the host to launched plugins.
	Host plugin.Config
	// Trust decides whose directories and sockets are used, and which users may register which plugin types. The zero value trusts root and
	// the user of this process with everything. A plugin that the Launcher runs as another user is trusted on its own socket.
	Trust trust.Policy
	// Admission returns the admission plugin to ask before a program is launched and before a plugin is registered, for example from
	// [host.NewAdmission]. New calls it with the Runtime's host; the Runtime closes the result when Run ends. If nil, everything is
	// admitted.
	//
	// The pin of a discovered plugin is its name and the digest of the program that the process behind its socket runs; the pin of a
	// launched plugin is the name under which it was launched and the digest of the program that was executed. A plugin whose program
	// cannot be read is refused. If the admission plugin does not answer, the plugin is tried again with back-off.
	Admission func(*host.Host) (plugin.AdmissionPlugin, error)
	// LaunchedOnly refuses every plugin that neither the Launcher nor the Host launched. For the refused plugins, admission would only
	// prove which program the process behind the socket was executing when it was checked, not which process created the socket.
	LaunchedOnly bool
	// SurvivorDir records launched plugins that survive the Runtime; see [host.Host].StateDir. If empty, none survives.
	SurvivorDir string
	// EventsPath is a file that keeps events across restarts, one line of JSON each; older events move to EventsPath + ".1". Each file
	// holds about 4 MiB at most. After a crash, a torn line is skipped and the very last events may be missing. If empty, events are not
	// kept across restarts. It must be a regular file, or not exist yet.
	EventsPath string
	// Observer has functions for metrics and traces.
	Observer Observer
	// Logger receives messages for operators: each event, which [Runtime.Events] delivers too, and the output of launched plugins. A host
	// that logs the events of [Runtime.Events] logs them twice. If nil, nothing is logged.
	Logger *slog.Logger
}

// Limits bound what plugins may cost. Zero values are the defaults; [New] returns an error for negative ones.
type Limits struct {
	// Timeouts limit the steps of a registration. TypeTimeouts override them for some plugin types; until a plugin has announced its type,
	// the longest one applies.
	Timeouts     plugin.Timeouts
	TypeTimeouts map[string]plugin.Timeouts
	// Bounds limit what plugins may announce.
	Bounds plugin.Bounds
	// MaxDepth limits the directories below a plugin directory on the way to a socket (default 16), MaxSockets the sockets in one directory
	// (default 10,000), MaxUserDirs the directories of one user below the plugin directories (default 6,000), and MaxDirs those of all
	// users (default 20,000), of which as many as one user may have are kept for root and the host's user. What exceeds a limit is ignored,
	// and [Runtime.Conditions] reports it.
	MaxDepth, MaxSockets, MaxUserDirs, MaxDirs int
}

// Runtime discovers, registers and dispenses plugins. Its methods are safe for concurrent use.
type Runtime struct{ rt *pluginruntime.Runtime }

// New returns a Runtime and loads its state. It returns an error if the state or the configuration is unusable. Nothing is watched before
// [Runtime.Run].
func New(cfg Config) (*Runtime, error) {
	for _, ptype := range slices.Sorted(maps.Keys(cfg.Handlers)) {
		if cfg.Handlers[ptype] == nil {
			return nil, fmt.Errorf("cannot create a plugin runtime: the handler of plugin type %s is nil", ptype)
		}
		if !untrusted.IsType(ptype) {
			return nil, fmt.Errorf("cannot create a plugin runtime: Config.Handlers: %q %s", ptype, untrusted.TypeSyntax)
		}
	}
	rt := &pluginruntime.Runtime{
		Watcher: &pipeline.Watcher{
			Dirs:          cfg.PluginDirs,
			DeprecatedDir: cfg.DeprecatedPluginDir,
			MaxDepth:      cfg.Limits.MaxDepth,
			MaxSockets:    cfg.Limits.MaxSockets,
			MaxUserDirs:   cfg.Limits.MaxUserDirs,
			MaxDirs:       cfg.Limits.MaxDirs,
			Registration: reconciler.Config{
				Timeouts:         cfg.Limits.Timeouts,
				TypeTimeouts:     cfg.Limits.TypeTimeouts,
				Bounds:           cfg.Limits.Bounds,
				ClientTimeout:    cfg.ClientTimeout,
				UnreachableGrace: cfg.UnreachableGrace,
				NameGrace:        cfg.NameGrace,
				IgnoreUnhandled:  cfg.IgnoreUnhandled,
			},
		},
		State:           cfg.State,
		Dispensers:      cfg.Dispensers,
		RegistryOptions: cfg.RegistryOptions,
		HostConfig:      cfg.Host,
		TrustPolicy:     cfg.Trust,
		NewAdmission:    cfg.Admission,
		LaunchedOnly:    cfg.LaunchedOnly,
		SurvivorDir:     cfg.SurvivorDir,
		EventsPath:      cfg.EventsPath,
		Observer:        pluginruntime.Observer(cfg.Observer),
		Logger:          cfg.Logger,
	}
	if err := rt.Open(); err != nil {
		return nil, err
	}
	for ptype, h := range cfg.Handlers {
		rt.AddHandler(ptype, h)
	}
	return &Runtime{rt}, nil
}

// AddHandler makes h the handler of a plugin type. It may be called at any time; plugins that wait for the handler are registered
// immediately. A plugin without a handler is refused (or ignored, with Config.IgnoreUnhandled), and removed if it was restored after a
// restart. So add handlers before Run where possible. AddHandler panics if h is nil or pluginType is empty or has a slash.
func (r *Runtime) AddHandler(pluginType string, h cache.PluginHandler) {
	r.rt.AddHandler(pluginType, h)
}

// RemoveHandler removes the handler of a plugin type and deregisters its plugins.
func (r *Runtime) RemoveHandler(pluginType string) { r.rt.RemoveHandler(pluginType) }

// Run discovers and registers plugins until ctx ends. It then stops launched plugins, waits for all its goroutines, including calls of
// handlers, and shuts the registry down. Plugins stay registered in the saved state; the next Runtime with that state restores them. Call
// Run once. It returns an error if a plugin directory cannot be created or read.
func (r *Runtime) Run(ctx context.Context) error { return r.rt.Run(ctx) }

// Ready returns a channel that is closed after the first search of all plugin directories.
func (r *Runtime) Ready() <-chan struct{} { return r.rt.Ready() }

// Registry returns the registry of plugins. It can be used before and during Run, and read after it.
func (r *Runtime) Registry() *dynamicplugins.Store { return r.rt.Registry() }

// Host returns the host of launched plugins. What it launches is not supervised; [Runtime.Launcher] does that. Run closes it.
func (r *Runtime) Host() *host.Host { return r.rt.Host() }

// Launcher returns the launcher, which starts plugins and keeps them running. It can be used at any time; Run closes it.
func (r *Runtime) Launcher() *launcher.Launcher { return r.rt.Launcher() }

// Plugins returns the status of all known plugins and sockets, sorted by type and name, newest instance first. It includes plugins that
// other packages have added to the registry.
func (r *Runtime) Plugins() []plugin.Status { return r.rt.Plugins() }

// WaitForPlugins blocks until all of the given plugins are registered. A plugin restored from the state counts once it has been found
// alive. If ctx ends first, the error names each missing plugin with what is known about it, and wraps ctx.Err().
func (r *Runtime) WaitForPlugins(ctx context.Context, plugins ...plugin.Name) error {
	return r.rt.WaitForPlugins(ctx, plugins...)
}

// Events returns a channel with the last tail events, of which 4,096 are kept in memory, followed by new ones in order. The channel is
// closed when ctx ends, or after the last event once the Runtime has stopped. A reader that leaves more than 8,192 events unread gets one
// event of kind [plugin.EventResync] instead of them; it should list [Runtime.Plugins] again.
func (r *Runtime) Events(ctx context.Context, tail int) <-chan plugin.Event {
	return r.rt.Events(ctx, tail)
}

// Conditions returns which parts of the Runtime work: "discovery", which is degraded while a problem with files of root or of the host's
// user delays the discovery of plugins; "directories", which is degraded while there is a problem with directories or sockets of other
// users, for example because there are too many; and, with a Config.EventsPath, "events", which is degraded while events cannot be kept
// there. Plugins are registered in all cases except the first.
func (r *Runtime) Conditions() []plugin.Condition { return r.rt.Conditions() }
