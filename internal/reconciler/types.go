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

// Registry stores the registered instances. Methods that may block on the disk are called without locks and, for different plugins,
// concurrently.
type Registry interface {
	// Stage saves instances without making them visible, each as the newest of its type and name, and returns a Stage for each, in order. An
	// instance with a known ID is updated and becomes the newest too. A change that is only one of the order need not be saved.
	Stage([]plugin.Instance) []Stage
	// Remove removes an instance; in the same step, the newest one left of its type and name becomes current. Removing an unknown instance is
	// not an error.
	Remove(ptype, name, id string) error
	// Confirm states that a superseded instance, which was restored or unreachable, is alive. It does not block.
	Confirm(ptype, name, id string)
	// Unreachable states why an instance must not be dispensed until it is published again or confirmed. It does not block.
	Unreachable(ptype, name, id string, reason error)
	// Reserve records the reservation of a name. It does not block: the reservation is saved with the next removal of an instance of the name.
	Reserve(plugin.Reservation)
	// SaveReservation saves the recorded reservation of a name, unless it is saved.
	SaveReservation(plugin.Name) error
}

// Stage is the result of staging one instance. With both a Staged and an error, the caller must discard the Staged.
type Stage struct {
	Staged Staged
	Err    error
}

// Staged is an instance that is saved and not yet visible.
type Staged interface {
	// Publish makes it visible and announces it. It does not block.
	Publish()
	// Discard undoes the staging.
	Discard() error
}

// Transport reaches plugins through their registration sockets.
type Transport interface {
	// Dial connects to the socket at a path. It returns an error if the socket there has another identity, unless the identity is zero. An
	// error that wraps a [trust.Refusal] means that the socket or its process is not trusted. Dial blocks until ctx ends or the timeout has
	// passed. See also [IsFirst].
	Dial(ctx context.Context, timeout time.Duration, path string, socket plugin.SocketID) (Conn, error)
	// Probe returns nil if a process accepts on the socket with this path and identity, as for Dial. It then also watches the plugin as
	// Conn.Watch does, without a connection that the plugin would notice; stop is nil if the plugin cannot be watched.
	Probe(ctx context.Context, path string, socket plugin.SocketID, hint func()) (stop func(), err error)
	// Refused reports whether an error of Dial or Probe means that no process accepts on the socket.
	Refused(err error) bool
	// WatchProcess calls hint, at most once, when a process exits. An error means that it has exited or cannot be watched.
	WatchProcess(peer plugin.Peer, hint func()) (stop func(), err error)
	// Listens reports whether a process still listens on a socket that has no path any more, and on which peer listened. It is true if the
	// system cannot tell. It may block on the system.
	Listens(socket plugin.SocketID, peer plugin.Peer) bool
	// Latencies estimates how long connecting to a socket takes, without the wait until it may be connected to, and how long a plugin takes
	// to answer GetInfo; zero if not measured. It is called with locks held, and must neither block nor call the Reconciler.
	Latencies() (connecting, answering time.Duration)
	// Source returns how the plugin of a socket came to the host. Withdrawn returns why a socket that exists was removed from the desired
	// state of the world; nil if it does not exist. They are called with locks held, and must neither block nor call the Reconciler.
	Source(socketPath string) plugin.Source
	Withdrawn(socketPath string) error
}

// Conn is a connection to the registration service of one plugin. It is used by one goroutine at a time.
type Conn interface {
	// GetInfo returns what the plugin announces. It blocks until the plugin answers, ctx ends or the timeout has passed.
	GetInfo(ctx context.Context, timeout time.Duration) (plugin.Info, error)
	// Notify notifies the plugin whether it is registered, with the reason if it is not. It blocks as GetInfo does.
	Notify(ctx context.Context, timeout time.Duration, registered bool, reason string) error
	// Peer identifies the process at the other end; zero if it is not visible.
	Peer() plugin.Peer
	// Account returns the account responsible for the plugin; zero if it is not known.
	Account() plugin.Account
	// Watch calls hint, at most once, when the plugin may be gone; hint does not block. It takes over the connection, whose methods must not
	// be called afterwards. stop ends the watch, and may be called at any time. With an error, the plugin cannot be watched and the
	// connection is closed.
	Watch(hint func()) (stop func(), err error)
	// Close ends the connection. It does not block.
	Close() error
}

type firstKey struct{}

// IsFirst reports whether ctx is that of a first attempt: none has failed since the socket appeared, the plugin was registered, or
// [Reconciler.Retry] was called. A Transport that limits calls should prefer first attempts.
func IsFirst(ctx context.Context) bool { return ctx.Value(firstKey{}) != nil }

var defaultTimeouts = plugin.Timeouts{Dial: time.Second, GetInfo: 5 * time.Second, Notify: 5 * time.Second}

// timeoutTable has the timeouts of all types and those of some.
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

// CheckTimeouts returns an error if a timeout is negative, or a key of byType is not a plugin type.
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

// withDefaults returns t with the values of other where those of t are zero.
func withDefaults(t, other plugin.Timeouts) plugin.Timeouts {
	return plugin.Timeouts{
		Dial:    cmp.Or(t.Dial, other.Dial),
		GetInfo: cmp.Or(t.GetInfo, other.GetInfo),
		Notify:  cmp.Or(t.Notify, other.Notify),
		Handler: cmp.Or(t.Handler, other.Handler),
	}
}

// longest returns the longer of each timeout.
func longest(t, other plugin.Timeouts) plugin.Timeouts {
	return plugin.Timeouts{
		Dial:    max(t.Dial, other.Dial),
		GetInfo: max(t.GetInfo, other.GetInfo),
		Notify:  max(t.Notify, other.Notify),
		Handler: max(t.Handler, other.Handler),
	}
}

// Config configures a [Reconciler]. It may be used again for another one.
type Config struct {
	Desired   *cache.Desired
	Transport Transport
	// Registry stores the registered instances; nil for none.
	Registry Registry
	// Restored are the instances that the registry has restored, those of one name in the reverse order of their registration. The
	// reconciler checks whether they are alive.
	Restored []plugin.Instance
	// Observe is called for each event, and OnTransition for each state of an instance that no event reports, with the state as the kind.
	// While attempts fail repeatedly, OnTransition is called once for each state; it is only called while Logger is enabled for Debug.
	// Attempted is called at the end of each attempt to register an instance, and Refused for each refusal of something untrusted.
	//
	// They are called in order, with internal locks held: they must neither block nor call the Reconciler. Each may be nil.
	Observe, OnTransition func(plugin.Event)
	Attempted             func(plugin.Attempt)
	Refused               func(trust.Reason)
	// Tracer creates one span for each attempt and one for each step of it, in one trace from the appearance of a socket to its
	// registration. RegisterPluginContext gets a context with the span. May be nil.
	Tracer trace.Tracer
	// Admit returns nil if a plugin, which its handler has validated, may be registered. The instance has an ID if it was registered before.
	// Admit may block until ctx ends, which is when the plugin's socket is removed or the reconciler stops. After an error, the plugin is
	// sent a refusal and removed from the registry; after one that wraps cache.ErrRetry, no refusal is sent, and a plugin in the registry is
	// not dispensed. In both cases the attempt is repeated with back-off. If Admit is nil, every plugin is admitted.
	Admit func(ctx context.Context, in plugin.Instance) error
	// Trust decides which account may register which types, and take which names; nil permits everything.
	Trust *trustjudge.Judge
	// IgnoreUnhandled sends nothing except GetInfo to plugins of a type without a handler. Otherwise they are sent a refusal, which makes
	// some exit, even if they belong to another host that uses the same directory.
	IgnoreUnhandled bool
	// ClientTimeout returns the timeout configured for calls to a plugin, which its handler receives; nil for none. May be nil.
	ClientTimeout func(ptype, name string) *time.Duration
	// Timeouts apply to every plugin type; TypeTimeouts override them for some types. Until the type of a plugin is known, the longest
	// configured timeout applies.
	Timeouts     plugin.Timeouts
	TypeTimeouts map[string]plugin.Timeouts
	Bounds       plugin.Bounds
	// UnreachableGrace is how long a plugin stays registered while no process accepts on its socket (default 0: not at all).
	UnreachableGrace time.Duration
	// NameGrace is how long the name of a plugin stays reserved for its user after its last instance was removed (default 0: not at all).
	// Plugins of other users are refused the name, unless Trust permits them to take it. At most 256 names are reserved for one user, and
	// 4,096 in total; the oldest are dropped first. Names are the reservations from before a restart.
	NameGrace time.Duration
	Names     []plugin.Reservation
	// Slots is how many registrations may make progress at the same time (default 64). One that waits for its plugin or handler occupies a
	// slot for at most 25 ms, or longer on a slow machine, and one that is being saved occupies none.
	Slots  int
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
	case c.Slots < 0:
		return fmt.Errorf("negative Slots: %d; use 0 for the default", c.Slots)
	}
	return CheckTimeouts(c.Timeouts, c.TypeTimeouts)
}
