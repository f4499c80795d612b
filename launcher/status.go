package launcher

import "time"

// State is what a launched plugin does.
type State string

// The states of a launched plugin.
const (
	// StateStarting: its process is being started, or runs and is not ready yet.
	StateStarting State = "starting"
	// StateRunning: it is ready: registered if it serves.
	StateRunning State = "running"
	// StateUnresponsive: it runs and does not answer health checks.
	StateUnresponsive State = "unresponsive"
	// StateBackoff: it ended and is started again at NextStart.
	StateBackoff State = "backoff"
	// StateFailed: it ended too often; Restart and Start begin anew.
	StateFailed State = "failed"
	// StateStopped: it was stopped, ended by itself and is not to be started again, or was never started.
	StateStopped State = "stopped"
)

// Status describes a launched plugin.
type Status struct {
	Name  string
	State State
	// Since is when it entered its state.
	Since time.Time
	// Health is what it says of itself through grpc.health.v1: "serving", "not-serving", "unresponsive", "not-offered", or "unknown".
	Health string
	// PID is its process; zero if it has none.
	PID int
	// Socket is where it serves; empty if it does not.
	Socket string
	// Restarts counts how often it was started again since it was last started or replaced by hand.
	Restarts int
	// NextStart is when it is started again; zero if that is not planned.
	NextStart time.Time
	// LastError says how its last life ended, or why its last replacement failed, with the last lines that it wrote to standard error.
	LastError string
}

// EventKind names what happened to a launched plugin. That a process was started or has ended is told by the host.
type EventKind string

// The kinds of events.
const (
	// EventFailed: it could not be started, ended too often, or a replacement did not become ready.
	EventFailed EventKind = "failed"
	// EventStopped: it was told to end, and has.
	EventStopped EventKind = "stopped"
	// EventReplaced: a new process of it is ready, and the old one is told to end.
	EventReplaced EventKind = "replaced"
	// EventUnresponsive: it does not answer health checks. EventResponsive: it does so again.
	EventUnresponsive EventKind = "unresponsive"
	EventResponsive   EventKind = "responsive"
	// EventUnhealthy: it says itself that it does not serve. EventHealthy: it does so again.
	EventUnhealthy EventKind = "unhealthy"
	EventHealthy   EventKind = "healthy"
)

// Event says what happened to a launched plugin.
type Event struct {
	Time   time.Time
	Kind   EventKind
	Name   string
	Socket string
	// Message explains the event in one line.
	Message string
}
