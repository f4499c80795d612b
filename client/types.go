package client

import (
	"strings"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// ParsePlugin splits TYPE/NAME, as plugins are written for people. The type ends at the first slash; the name may have more. Neither is
// empty if ok is true.
func ParsePlugin(text string) (ptype, name string, ok bool) {
	ptype, name, _ = strings.Cut(text, "/")
	return ptype, name, ptype != "" && name != ""
}

// pluginText is how a plugin is written for people: TYPE/NAME, or NAME for one of the catalogue.
func pluginText(ptype, name string) string {
	if ptype == "" {
		return name
	}
	return ptype + "/" + name
}

// Plugin is one instance of a plugin, or one socket whose plugin has not identified itself yet. It mirrors the message Plugin of the
// control API; a time is nil if what it stands for has not happened or is not planned.
type Plugin struct {
	// Type and Name are what the plugin announced; empty until it has answered.
	Type string `json:"type"`
	Name string `json:"name"`
	// Versions are the versions that the plugin announced, in its order; Version is its own version if its handler found it out, otherwise the
	// first of them.
	Version  string   `json:"version"`
	Versions []string `json:"versions"`
	// State is the state of the instance, for example "registered". States that this package does not know may be added.
	State string `json:"state"`
	// Reason says in a sentence why the instance is in its state; empty if the state says it all.
	Reason string `json:"reason"`
	// Current says that this is the instance that is dispensed for its type and name.
	Current bool `json:"current"`
	// Endpoint is the socket of the plugin's own services, SocketPath the one of its registration service.
	Endpoint   string `json:"endpoint"`
	SocketPath string `json:"socketPath"`
	// Instance identifies the instance; empty as long as it has never been registered.
	Instance string `json:"instance"`
	// Roles are further types under which the instance is registered, for example "csi-node".
	Roles []string `json:"roles"`
	// Details are what the handler of its type found out about it.
	Details map[string]string `json:"details"`
	// Metadata are those of its entry in the catalogue, if the daemon launched it.
	Metadata map[string]string `json:"metadata"`
	// Source is "discovered", "launched", or "host" for what the host itself registered.
	Source string `json:"source"`
	// FirstSeen is when the socket appeared, Since when the instance entered its state.
	FirstSeen    *time.Time `json:"firstSeen"`
	Since        *time.Time `json:"since"`
	RegisteredAt *time.Time `json:"registeredAt"`
	// Attempts counts the failed attempts since the last success.
	Attempts  int        `json:"attempts"`
	NextRetry *time.Time `json:"nextRetry"`
	// LastError is the error of the last failed attempt, in one line; empty after a success.
	LastError string `json:"lastError"`
}

// Condition is one aspect of the daemon's health.
type Condition struct {
	Name string `json:"name"`
	// Status is "ok" or "degraded".
	Status  string     `json:"status"`
	Message string     `json:"message"`
	Since   *time.Time `json:"since"`
}

// Listing is a consistent view of what the daemon knows.
type Listing struct {
	// Plugins are ordered by type, name, and newest first within a name.
	Plugins []Plugin `json:"plugins"`
	// Conditions are ordered by name.
	Conditions []Condition `json:"conditions"`
}

// Event is one thing that happened in the daemon.
type Event struct {
	// Seq grows by one with each event, also across restarts of the daemon, unless its event file is lost.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	// Kind is what happened, for example "registered". Kinds that this package does not know may be added.
	Kind       string `json:"kind"`
	Type       string `json:"type"`
	Name       string `json:"name"`
	Instance   string `json:"instance"`
	Endpoint   string `json:"endpoint"`
	SocketPath string `json:"socketPath"`
	// Message says what happened, as one line for people.
	Message string `json:"message"`
}

// EventsOptions selects the events of [Client.Events]. The zero value selects all past events that the daemon keeps.
type EventsOptions struct {
	// Follow continues with new events after the past ones.
	Follow bool
	// Tail limits the past events to the newest ones, oldest first; nil for all that are kept.
	Tail *uint32
	// Types, Names and Kinds select events; empty for all.
	Types, Names, Kinds []string
	// Since selects past events from this time on; zero for all.
	Since time.Time
}

// Version identifies the build and the process of a daemon.
type Version struct {
	Version   string    `json:"version"`
	Commit    string    `json:"commit"`
	GoVersion string    `json:"goVersion"`
	PID       int       `json:"pid"`
	StartTime time.Time `json:"startTime"`
	// Node is the name of the node in the fleet, or else that of the machine.
	Node string `json:"node"`
}

// Configuration holds the files and directories that a daemon uses. All paths are absolute.
type Configuration struct {
	PluginDirs []string `json:"pluginDirs"`
	// DeprecatedPluginDir is empty if there is none.
	DeprecatedPluginDir string `json:"deprecatedPluginDir"`
	State               string `json:"state"`
	ControlSocket       string `json:"controlSocket"`
	// Effective is the configuration in force as YAML, with the source of each value and without secrets; empty if the daemon does not say.
	Effective string `json:"effective"`
	// Handlers are the plugin types that have a handler, in order.
	Handlers []string `json:"handlers"`
}

// Reloaded says what a reload of the configuration did.
type Reloaded struct {
	// Changed are the keys whose values changed, in order, for example "log.level"; empty if nothing did.
	Changed []string `json:"changed"`
	// NotReplaced says why processes of changed plugins could not be replaced; empty if all were. The configuration is in force nevertheless.
	NotReplaced []string `json:"notReplaced"`
}

// Goal is what [Client.Wait] waits for.
type Goal string

// The goals of [Client.Wait].
const (
	// GoalRegistered: an instance of the plugin is registered and can be dispensed.
	GoalRegistered Goal = "registered"
	// GoalDeregistered: no instance of the plugin is registered, nor restored and not yet confirmed. A plugin that was never known is
	// deregistered.
	GoalDeregistered Goal = "deregistered"
)

func pluginOf(p *patchbayv1.Plugin) Plugin {
	return Plugin{
		Type: p.GetType(), Name: p.GetName(), Version: p.GetVersion(), Versions: present(p.GetVersions()), Roles: present(p.GetRoles()),
		Details: p.GetDetails(), Metadata: p.GetMetadata(),
		State: p.GetState(), Reason: p.GetReason(), Current: p.GetCurrent(), Endpoint: p.GetEndpoint(),
		SocketPath: p.GetSocketPath(), Instance: p.GetInstance(), Source: p.GetSource(), FirstSeen: timeOf(p.GetFirstSeen()),
		Since: timeOf(p.GetSince()), RegisteredAt: timeOf(p.GetRegisteredAt()), Attempts: int(p.GetAttempts()),
		NextRetry: timeOf(p.GetNextRetry()), LastError: p.GetLastError(),
	}
}

func conditionOf(c *patchbayv1.Condition) Condition {
	return Condition{Name: c.GetName(), Status: c.GetStatus(), Message: c.GetMessage(), Since: timeOf(c.GetSince())}
}

func eventOf(e *patchbayv1.Event) Event {
	return Event{
		Seq: e.GetSeq(), Time: e.GetTime().AsTime(), Kind: e.GetKind(), Type: e.GetType(), Name: e.GetName(), Instance: e.GetInstance(),
		Endpoint: e.GetEndpoint(), SocketPath: e.GetSocketPath(), Message: e.GetMessage(),
	}
}
