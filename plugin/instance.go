package plugin

import (
	"time"
)

// Instance is one registered instance of a plugin, as the host records it.
type Instance struct {
	// ID is the AllocID in the registry.
	ID, Type, Name string
	// Versions are the versions that the plugin announced, in its order.
	Versions []string
	// Endpoint is the socket of the plugin's own services, SocketPath that of its registration service.
	Endpoint, SocketPath string
	// Socket identifies the registration socket, Peer the process that serves it.
	Socket SocketID
	Peer   Peer
	Source Source
	// Rank orders the instances of one name by age; the newest has the highest rank. The order of registration may differ: an older
	// instance takes over while the newest does not answer. Zero is no rank.
	Rank uint64
	// RegisteredAt is when it was first registered.
	RegisteredAt time.Time
	// Account is responsible for it.
	Account Account
	// Registration is the result of its last registration; zero before the first.
	Registration Registration
}

// PluginName returns the type and name.
func (in *Instance) PluginName() Name { return Name{in.Type, in.Name} }

// Registration is what a handler learned about a plugin while registering it. The zero value adds nothing.
type Registration struct {
	// Roles are further plugin types under which the registry lists the instance, with the same name and AllocID, for example csi-node. It
	// appears and disappears under all of them together. A newer instance supersedes it in the roles that both have.
	Roles []string
	// Version is the plugin's own version (default: the first version that it announced).
	Version string
	// Details are kept in the options of the instance's entries in the registry, under the same keys. The prefix patchbay.dev/ is reserved.
	Details map[string]string
	// WatchEndpoint makes the instance unreachable when its endpoint stops accepting too, if that is not the registration socket. It is
	// registered again as soon as RegisterPluginContext succeeds.
	WatchEndpoint bool
}

// Status describes one instance of a plugin, or one socket that has not answered yet.
type Status struct {
	// Type and Name are what the plugin announced; empty until it has answered.
	Type, Name string
	// Versions are the versions that the plugin announced, in its order. Version is its own version if its handler reported one, otherwise
	// the first of Versions.
	Version  string
	Versions []string
	State    State
	// Current reports whether its handler has this instance.
	Current bool
	// Registration is the result of its last registration; zero before the first.
	Registration Registration
	// Endpoint is the socket of the plugin's own services, SocketPath that of its registration service.
	Endpoint, SocketPath string
	// Instance identifies the instance; empty if it has never been registered.
	Instance string
	Source   Source
	// FirstSeen is when the socket appeared, and Since when the instance entered its state. RegisteredAt is when it was first registered,
	// maybe before a restart of the host; zero if it is not registered.
	FirstSeen, Since, RegisteredAt time.Time
	// Attempts counts the failed attempts since the last success. NextRetry is when the next one is due; zero if none is planned.
	Attempts  int
	NextRetry time.Time
	// LastError is the error of the last failed attempt, and FailingSince when the first attempt since the last success failed; zero after a
	// success.
	LastError    string
	FailingSince time.Time
	// Launch is the status of the launched plugin that the instance belongs to; nil for other plugins.
	Launch *LaunchStatus
}

// PluginName returns the type and name.
func (s Status) PluginName() Name { return Name{s.Type, s.Name} }

// Reservation keeps the name of a plugin for an account while no instance of it is registered.
type Reservation struct {
	Plugin Name
	// Owner is the account that may take the name. Only its UID, GID and Known are saved.
	Owner Account
	// Until is when the reservation ends. With the zero time, the name is not reserved.
	Until time.Time
}

// Result is how an attempt to register an instance ended.
type Result string

// The results of an attempt.
const (
	// ResultRegistered: the instance is registered.
	ResultRegistered Result = "registered"
	// ResultSuperseded: the plugin answered, but a newer instance is current.
	ResultSuperseded Result = "superseded"
	// ResultRefused: the plugin was refused, or is not trusted.
	ResultRefused Result = "refused"
	// ResultIgnored: its type has no handler, and the host ignores such plugins.
	ResultIgnored Result = "ignored"
	// ResultFailed: the attempt failed without a refusal.
	ResultFailed Result = "failed"
	// ResultGone: the plugin disappeared during the attempt.
	ResultGone Result = "gone"
)

// Attempt describes one completed attempt to register an instance.
type Attempt struct {
	// Type and Name are what the plugin announced; empty if it did not answer.
	Type, Name string
	Result     Result
	// Duration is how long it took; the first attempt begins when the socket is seen.
	Duration time.Duration
}

// Timeouts bound the steps of a registration. Zero means the default: 1 s for Dial, 5 s for GetInfo and Notify, and no bound for Handler.
// Only a handler that has a method RegisterPluginContext can be interrupted; any other handler that does not return blocks its plugin, and
// the status shows that.
type Timeouts struct {
	// Dial bounds one connect to a socket.
	Dial time.Duration `json:"dial"`
	// GetInfo bounds the call that asks a plugin for its type and name.
	GetInfo time.Duration `json:"getInfo"`
	// Notify bounds the call that notifies a plugin of the result of its registration.
	Notify time.Duration `json:"notify"`
	// Handler bounds one registration by a handler that can be interrupted (default: unlimited).
	Handler time.Duration `json:"handler"`
}

// Bounds limit what a plugin may announce. Zero values are the defaults. An answer may be limited as a whole before they apply.
type Bounds struct {
	// Text is the greatest length of a type, name or endpoint in bytes (default 4,096). A version may have at most 64.
	Text int
	// Versions is the greatest number of versions (default 64).
	Versions int
	// UserBytes is how many bytes all plugins of one user may announce (default 4 MiB), TotalBytes how many those of all users (default
	// 16 MiB). The last of these, as many as one user may have, are reserved for plugins of root and of the host's user.
	UserBytes, TotalBytes int
	// UserPlugins is how many identified plugins one user may have, and TotalPlugins how many all users may have (default: any number). They
	// do not apply to root and the host's user. Each plugin takes descriptors. As many may be asked for their identity at the same time.
	UserPlugins, TotalPlugins int
}
