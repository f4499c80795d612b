package plugin

// State is the state of a plugin.
type State string

// The states of an instance.
const (
	// StateRestored: the instance is known from before a restart of the host and not yet confirmed.
	StateRestored State = "restored"
	// StateConnecting: the host asks the socket for the plugin's type and name.
	StateConnecting State = "connecting"
	// StateWaiting: the plugin has answered and waits for other calls for its name.
	StateWaiting State = "waiting"
	// StateValidating: the handler's ValidatePlugin runs.
	StateValidating State = "validating"
	// StateAdmitting: the admission plugin is checking it.
	StateAdmitting State = "admitting"
	// StateRegistering: the handler's RegisterPlugin runs, or the registration is being saved.
	StateRegistering State = "registering"
	// StateNotifying: the plugin is being notified that it is registered.
	StateNotifying State = "notifying"
	// StateRegistered: it is registered and current, and can be dispensed.
	StateRegistered State = "registered"
	// StateIdle: it is registered, and its process is started on demand.
	StateIdle State = "idle"
	// StateDeregistering: the handler's DeRegisterPlugin runs.
	StateDeregistering State = "deregistering"
	// StateSuperseded: a newer instance of the same type and name is current. This one takes over when that one is gone.
	StateSuperseded State = "superseded"
	// StateBackoff: the last attempt failed without a refusal, and the next one is planned.
	StateBackoff State = "backoff"
	// StateUnreachable: the socket exists, but nothing accepts on it or on the endpoint.
	StateUnreachable State = "unreachable"
	// StateRefused: the plugin was refused, or is not trusted. If no next attempt is planned, its type has no handler, and it is registered
	// as soon as there is one.
	StateRefused State = "refused"
	// StateUnlinked: the socket of a registered plugin was removed, but its process still serves. It is listed until the process exits or
	// its name is registered again.
	StateUnlinked State = "unlinked"
	// StateIgnored: its type has no handler, and the host ignores such plugins. It is registered as soon as there is a handler.
	StateIgnored State = "ignored"
)

// The states of a launched plugin. StateBackoff, StateUnlinked and StateIdle are states of launched plugins too.
const (
	// StateStarting: the process is being started, or is not ready yet.
	StateStarting State = "starting"
	// StateRunning: the plugin is ready; if it serves, it is registered.
	StateRunning State = "running"
	// StateUnresponsive: the process runs and does not answer health checks.
	StateUnresponsive State = "unresponsive"
	// StateStopping: the process is being stopped.
	StateStopping State = "stopping"
	// StateFailed: the process exited too often. The plugin is started again on request only.
	StateFailed State = "failed"
	// StateBlocked: the plugin cannot be started before its program changes, or registered before its type has a handler. Then it is started.
	StateBlocked State = "blocked"
	// StateStopped: the plugin was stopped, exited and is not restarted, or was never started.
	StateStopped State = "stopped"
)

// Source is how the host learned of a plugin.
type Source string

// The sources of a plugin.
const (
	// SourceDiscovered: its socket was found in a plugin directory.
	SourceDiscovered Source = "discovered"
	// SourceLaunched: the host started its process.
	SourceLaunched Source = "launched"
	// SourceHost: the host's program registered it directly.
	SourceHost Source = "host"
)
