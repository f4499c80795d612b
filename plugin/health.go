package plugin

import (
	"cmp"
	"fmt"
	"time"
)

// ServingStatus is what a launched plugin reports through grpc.health.v1, or what its host found out by asking.
type ServingStatus string

// The values of ServingStatus.
const (
	ServingStatusUnknown      ServingStatus = "unknown"      // no check was answered yet
	ServingStatusNotOffered   ServingStatus = "not-offered"  // the plugin does not serve grpc.health.v1, or not for the service
	ServingStatusServing      ServingStatus = "serving"      // reported by the plugin
	ServingStatusNotServing   ServingStatus = "not-serving"  // reported by the plugin, or the check has failed with an error
	ServingStatusUnresponsive ServingStatus = "unresponsive" // the plugin does not answer
)

// FailsHealthChecks reports whether the plugin reports that it does not serve, or does not answer.
func (s ServingStatus) FailsHealthChecks() bool {
	return s == ServingStatusNotServing || s == ServingStatusUnresponsive
}

// HealthState says whether a plugin needs attention.
type HealthState string

// The states of health, best first.
const (
	// HealthHealthy: the plugin does what it is configured to do, or was stopped on request.
	HealthHealthy HealthState = "healthy"
	// HealthProgressing: it is being started, registered or stopped, and nothing has failed.
	HealthProgressing HealthState = "progressing"
	// HealthAttention: it has failed, and has not been healthy for long enough since. It may still recover by itself.
	HealthAttention HealthState = "attention"
)

// Health is the health of a plugin: what every list, page, metric and exit status derives its judgement from. A plugin needs attention from
// its first failure on. A discovered plugin is healthy again when it is registered; a launched one when it has run without a failure for
// the window of its restart policy, or was started or replaced on request.
type Health struct {
	State HealthState
	// Since is when the state began. The attempts and restarts of a plugin that needs attention do not change it.
	Since time.Time
	// Reason is why the plugin needs attention, and Remedy what to do about it; empty in the other states.
	Reason, Remedy string
	// HealthyFrom is when a launched plugin that runs again is healthy if it does not fail; zero otherwise.
	HealthyFrom time.Time
}

const (
	unknownReason = "the reason is not known"
	fixAndRestart = "read its log, fix the cause, and restart the plugin"
)

// instanceRemedies has the remedies for instances in states that need attention.
var instanceRemedies = map[State]string{
	StateRefused:     "fix the cause; the plugin is retried automatically",
	StateBackoff:     "fix the cause; the plugin is retried automatically",
	StateUnreachable: "start the plugin again, or remove its socket if it will not be started again",
	StateUnlinked:    "restart the plugin, so that it creates a new socket, and check who may write to the directory",
}

// Health returns the health of the instance and, if it was launched, of its launched plugin.
func (s Status) Health() Health {
	instance := s.instanceHealth()
	if s.Launch == nil {
		return instance
	}
	hasInstance := s.Type != "" || s.State != s.Launch.State
	if h := s.Launch.Health(); h.State == HealthAttention || instance.State == HealthHealthy || !hasInstance {
		return h
	}
	return instance
}

func (s Status) instanceHealth() Health {
	h := Health{State: HealthHealthy, Since: s.Since}
	remedy, failed := instanceRemedies[s.State]
	switch s.State {
	case StateRefused, StateBackoff, StateUnreachable, StateUnlinked:
		if s.State == StateRefused && s.NextRetry.IsZero() && s.Type != "" {
			remedy = fmt.Sprintf(
				"configure a handler for its type: handlers in the configuration, or --accept-type %s; it is registered immediately", s.Type)
		}
	case StateRestored, StateConnecting, StateWaiting, StateValidating, StateAdmitting, StateRegistering, StateNotifying, StateDeregistering:
		h.State = HealthProgressing
		failed, remedy = s.LastError != "", instanceRemedies[StateBackoff]
	default: // registered, superseded, idle or ignored; or without an instance, so that its launched plugin has its health
	}
	if failed {
		h = Health{State: HealthAttention, Since: cmp.Or(s.FailingSince, s.Since), Reason: cmp.Or(s.LastError, unknownReason), Remedy: remedy}
	}
	return h
}

// launchRemedies has the remedies for launched plugins in states that need attention.
var launchRemedies = map[State]string{
	StateBlocked:  "fix the cause; the plugin is started when its program, its configuration or the handlers have changed",
	StateBackoff:  restarting,
	StateStarting: "read its log and fix the cause; restart the plugin if it does not become ready",
	StateStopping: restarting,
	StateUnlinked: restarting,
	StateIdle:     "read its log and fix the cause; the plugin is started when it is needed",
	StateRunning:  "it runs again; read its log for the cause, if it was not a single failure",
}

const restarting = "read its log and fix the cause; the plugin is restarted automatically"

// FailsHealthChecks reports whether the instance was launched and its process fails its health checks.
func (s Status) FailsHealthChecks() bool {
	return s.Launch != nil && s.Launch.ServingStatus.FailsHealthChecks()
}

// Health returns the health of the launched plugin, without that of its instance in the registry.
func (s *LaunchStatus) Health() Health {
	switch {
	case !s.FailingSince.IsZero():
		remedy := launchRemedies[s.State]
		if s.State == StateRunning && s.HealthyFrom.IsZero() { // its health checks fail
			remedy = ""
		}
		return Health{HealthAttention, s.FailingSince, cmp.Or(s.LastError, unknownReason), cmp.Or(remedy, fixAndRestart), s.HealthyFrom}
	case s.Replacing:
		return Health{State: HealthProgressing, Since: s.Since}
	case s.ReplacementError != "":
		return Health{State: HealthAttention, Since: s.ReplacementFailed, Reason: s.ReplacementError, Remedy: fixAndRestart}
	case s.State == StateStarting || s.State == StateStopping || s.State == StateBackoff:
		return Health{State: HealthProgressing, Since: s.Since}
	}
	return Health{State: HealthHealthy, Since: s.Since}
}
