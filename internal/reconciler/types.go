package reconciler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Registry is what the reconciler needs of the plugin registry. What may block on the disk is called without locks and, for different
// plugins, concurrently.
type Registry interface {
	// Stage makes instances durable, each in front of all others of its type and name, without showing it to anyone, and returns a Stage for
	// each, in order. An instance with a known ID is updated and moves to the front too: the last registration is current, in the registry
	// as in the handler. A mere change of position need not be made durable.
	Stage([]plugin.Instance) []Stage
	// Remove takes the instance out; the newest one left of its type and name is current in the same step. Removing what does not exist is
	// not an error.
	Remove(ptype, name, id string) error
	// Confirm states that a superseded instance is alive, whether it was restored or unreachable. It does not block.
	Confirm(ptype, name, id string)
	// Unreachable states why an instance must not be dispensed until it is published again or confirmed. It does not block.
	Unreachable(ptype, name, id string, reason error)
	// Reserve records the reservation of a name. It does not block: the reservation is saved with the next removal of an instance of the name.
	Reserve(plugin.Reservation)
	// SaveReservation saves the recorded reservation of a name, unless it is saved.
	SaveReservation(plugin.Name) error
}

// Stage is what came of staging one instance. With both a Staged and an error, the work could not be undone, and the caller must discard
// it.
type Stage struct {
	Staged Staged
	Err    error
}

// Staged is an instance that is durable and not yet visible.
type Staged interface {
	// Publish makes it visible and announces it. It does not block.
	Publish()
	// Discard undoes the staging.
	Discard() error
}

// Transport reaches plugins through their registration sockets.
type Transport interface {
	// Dial connects to the socket at a path, if that is still the one with this identity; the zero one is any. What happens to another
	// socket, or that nobody accepts on it, says nothing about this one. An error that wraps a [trust.Refusal] says that it is not trusted.
	// It blocks no longer than ctx and timeout allow. See also [IsFirst].
	Dial(ctx context.Context, timeout time.Duration, path string, socket plugin.SocketID) (Conn, error)
	// Probe says whether anybody accepts on the socket at a path, if that is still the one with this identity, as for Dial: no error if so. It
	// then also watches the plugin, as Conn.Watch does, in a way that the plugin does not notice; a nil stop says that it cannot.
	Probe(ctx context.Context, path string, socket plugin.SocketID, hint func()) (stop func(), err error)
	// Refused says whether an error of Dial or Probe means that nobody accepts on the socket.
	Refused(err error) bool
	// WatchProcess has hint called, at most once, when a process ends. An error says that it has ended, or that the system cannot tell.
	WatchProcess(peer plugin.Peer, hint func()) (stop func(), err error)
	// Listens reports whether anybody still listens on a socket that no longer has a path and on which the process listened. It also reports
	// true if the system cannot tell. It may block for as long as the system takes to answer.
	Listens(socket plugin.SocketID, peer plugin.Peer) bool
	// Source returns how the plugin behind a socket came to the host, and Withdrawn why a socket that left the desired state of the world no
	// longer counts although it exists; nil: it was removed. They are called with locks held, and must neither block nor call back.
	Source(socketPath string) plugin.Source
	Withdrawn(socketPath string) error
}

// Conn is a connection to the registration service of one plugin. It is used by one goroutine at a time.
type Conn interface {
	// GetInfo asks the plugin who it is. It blocks until the plugin answers, ctx ends or timeout, which is positive, has passed.
	GetInfo(ctx context.Context, timeout time.Duration) (plugin.Info, error)
	// Notify tells the plugin whether it is registered and, if not, why. It blocks as GetInfo does.
	Notify(ctx context.Context, timeout time.Duration, registered bool, reason string) error
	// Peer identifies the process at the other end; zero if it cannot be seen.
	Peer() plugin.Peer
	// Account is who answers for the plugin; zero if the system does not say.
	Account() plugin.Account
	// Watch has hint called, at most once, when anything suggests that the plugin is gone; hint does not block. It takes over the
	// connection: afterwards only stop may be called, which ends the watch and may be called at any time. An error says that the plugin
	// cannot be watched; the connection is then closed.
	Watch(hint func()) (stop func(), err error)
	// Close ends the connection. It does not block.
	Close() error
}

type firstKey struct{}

// IsFirst reports whether a Transport dials a plugin with ctx for the first time: no attempt has failed since its socket appeared, it was
// registered or [Reconciler.Retry] was called. If not all plugins can be asked, these go before those that have failed.
func IsFirst(ctx context.Context) bool { return ctx.Value(firstKey{}) != nil }

var defaultTimeouts = plugin.Timeouts{Dial: time.Second, GetInfo: 5 * time.Second, Notify: 5 * time.Second}

// timeoutTable is what holds at one time.
type timeoutTable struct {
	all    plugin.Timeouts
	byType map[string]plugin.Timeouts
}

func checkNegative(t plugin.Timeouts) error {
	if min(t.Dial, t.GetInfo, t.Notify, t.Handler) < 0 {
		return fmt.Errorf("a timeout is negative: %+v; use 0 for the default", t)
	}
	return nil
}

// CheckTimeouts returns an error if a timeout is negative, or a text is not a plugin type.
func CheckTimeouts(all plugin.Timeouts, byType map[string]plugin.Timeouts) error {
	if err := checkNegative(all); err != nil {
		return err
	}
	for ptype, t := range byType {
		if !untrusted.IsType(ptype) {
			return fmt.Errorf("%q %s", ptype, untrusted.TypeSyntax)
		}
		if err := checkNegative(t); err != nil {
			return fmt.Errorf("type %s: %w", ptype, err)
		}
	}
	return nil
}

// withDefaults returns t with the values of other where t has none.
func withDefaults(t, other plugin.Timeouts) plugin.Timeouts {
	return plugin.Timeouts{
		Dial:    cmp.Or(t.Dial, other.Dial),
		GetInfo: cmp.Or(t.GetInfo, other.GetInfo),
		Notify:  cmp.Or(t.Notify, other.Notify),
		Handler: cmp.Or(t.Handler, other.Handler),
	}
}

// longest returns the longer one of each timeout.
func longest(t, other plugin.Timeouts) plugin.Timeouts {
	return plugin.Timeouts{
		Dial:    max(t.Dial, other.Dial),
		GetInfo: max(t.GetInfo, other.GetInfo),
		Notify:  max(t.Notify, other.Notify),
		Handler: max(t.Handler, other.Handler),
	}
}

// Config is what a [Reconciler] works with.
type Config struct {
	Desired   *cache.Desired
	Transport Transport
	// Registry keeps the registered instances; nil for none.
	Registry Registry
	// Restored are the instances that the registry has restored, those of one name in the reverse order of their registration. The
	// reconciler checks whether they are alive.
	Restored []plugin.Instance
	// Observe, Passed, Attempted and Refused are called in order, with internal locks held: they must neither block nor call back. They are
	// functions because most observers are interested in one of them; each may be nil.
	//
	// Observe is called for each event. Passed is called for each state of an instance that no event reports, with the state as the kind;
	// while attempts fail repeatedly, it is called once per state. It is only called while Logger is enabled for Debug. Attempted is called
	// at the end of each attempt to register an instance, and Refused whenever something that is not trusted is refused.
	Observe, Passed func(plugin.Event)
	Attempted       func(plugin.Attempt)
	Refused         func(trust.Reason)
	// Tracer traces attempts: one span per attempt and one for each step in it, in one trace from when a socket is seen until it is
	// registered. The context of RegisterPluginContext carries it on. Nil: nothing is traced.
	Tracer trace.Tracer
	// Admit says whether a plugin that its handler has validated may be registered; it has no ID yet, unless it was registered before. It
	// may block until ctx ends, which it does when the plugin's socket goes or the reconciler ends. With an error the plugin is sent a
	// refusal and removed, also from the registry, if it is there from an earlier registration. With one that wraps cache.ErrRetry no
	// refusal is sent, and a plugin that is in the registry is not dispensed. Either way the attempt is repeated with back-off. It is a
	// function because whether and how the host admits depends on its configuration. Nil: every plugin may.
	Admit func(ctx context.Context, in plugin.Instance) error
	// Trust says who may register which types, and who may take whose name. Nil: everybody may do everything.
	Trust *trustjudge.Judge
	// IgnoreUnhandled leaves plugins of a type without a handler alone: they are asked who they are, and no more. Otherwise they are sent a
	// refusal, which makes some exit, although they may belong to another host that uses the same directory.
	IgnoreUnhandled bool
	// ClientTimeout returns the timeout configured for calls to a plugin, which is handed to its handler; nil for none. It is a function
	// because the configuration may change. May be nil.
	ClientTimeout func(ptype, name string) *time.Duration
	// Timeouts apply to every plugin type; TypeTimeouts override them for some types. Until the type of a plugin is known, the longest
	// configured timeout applies.
	Timeouts     plugin.Timeouts
	TypeTimeouts map[string]plugin.Timeouts
	Bounds       plugin.Bounds
	// UnreachableGrace is how long a plugin on whose socket nobody accepts stays registered (default 0: not at all).
	UnreachableGrace time.Duration
	// NameGrace is how long the name of a plugin stays reserved for its user after its last instance goes away: meanwhile a plugin of
	// another user is refused that name, unless Trust lets it take the name (default 0: not at all). At most 256 names are reserved for one
	// user, of which the oldest are dropped first, and 4,096 in total. Names are the reservations from before a restart.
	NameGrace time.Duration
	Names     []plugin.Reservation
	// Walks bounds how many plugins are registered at the same time (default 64). A walk that waits for its plugin or handler does not count
	// for longer than a moment, and one that waits for the Registry not at all.
	Walks  int
	Logger *slog.Logger
}

// Validate returns an error if a timeout, a bound or a period is negative. It does not check Desired and Transport, which [New] requires.
func (c Config) Validate() error {
	b := c.Bounds
	switch {
	case min(b.Text, b.Versions, b.UserBytes, b.TotalBytes, b.UserPlugins, b.TotalPlugins) < 0:
		return fmt.Errorf("negative Bounds: %+v; use 0 for the default", b)
	case c.UnreachableGrace < 0:
		return fmt.Errorf("negative UnreachableGrace: %v", c.UnreachableGrace)
	case c.Walks < 0:
		return fmt.Errorf("negative Walks: %d; use 0 for the default", c.Walks)
	}
	return CheckTimeouts(c.Timeouts, c.TypeTimeouts)
}
