package dynamicplugins

import (
	"container/list"
	"maps"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Plugin types that the registry's users agree on.
const (
	PluginTypeCSIController = "csi-controller"
	PluginTypeCSINode       = "csi-node"
)

// PluginInfo describes one instance of a plugin. Values that the registry returns are shared by all callers and must not be changed;
// values passed to it are copied.
type PluginInfo struct {
	Name    string
	Type    string
	Version string

	// ConnectionInfo is where the instance serves. It must be set.
	ConnectionInfo *PluginConnectionInfo

	// AllocID identifies the instance among those of its type and name. It may be empty.
	AllocID string

	// Options are further metadata, which the registry stores without interpreting them.
	Options map[string]string

	// Instance describes an instance that a host discovered; it is nil for one that a program registered itself. In the entry of a role it has
	// only Type, which is the type of the plugin, Account and Socket. It is not copied and must not be changed. In a storage it is nil, and
	// its contents are in Options, under keys that begin with "patchbay.dev/".
	Instance *plugin.Instance

	// Damage is the error of parts of Instance that could not be read from the storage.
	Damage error
}

// PluginConnectionInfo has what is needed to connect to a plugin.
type PluginConnectionInfo struct {
	// SocketPath is the Unix socket of the plugin's own services.
	SocketPath string
}

// PluginDispenser creates a client for the instance that info describes. The registry calls it without locks held.
type PluginDispenser func(info *PluginInfo) (any, error)

// RegistryState is the state in a StateStorage: by type and name, a list of *PluginInfo, newest first.
type RegistryState struct {
	Plugins map[string]map[string]*list.List

	// Reservations are those that were put into a ChangeStorage, in no order. They are not part of states that are put.
	Reservations []plugin.Reservation
}

// EventType is the kind of a PluginUpdateEvent.
type EventType string

const (
	// EventTypeRegistered is sent when an instance was added.
	EventTypeRegistered EventType = "registered"
	// EventTypeDeregistered is sent when an instance was removed.
	EventTypeDeregistered EventType = "deregistered"
	// EventTypeUpdated is sent when the details of a known instance changed. It keeps its rank.
	EventTypeUpdated EventType = "updated"
	// EventTypeResync replaces the events that a subscriber was too slow to read.
	EventTypeResync EventType = "resync"
)

// PluginUpdateEvent is one change of the registry. Subscribers share it and must not change it.
type PluginUpdateEvent struct {
	EventType EventType

	// Info is the instance after the change, or its last state if it was removed. It is nil in a resync.
	Info *PluginInfo

	// Plugins is set only in a resync: all instances of the subscribed type, sorted by type and name, newest first. Later events are changes
	// after this snapshot.
	Plugins []*PluginInfo
}

// IsRole reports whether p is the entry of an instance for one of its roles.
func (p *PluginInfo) IsRole() bool {
	return p.Instance != nil && p.Instance.Type != "" && p.Instance.Type != p.Type
}

func (p *PluginInfo) clone() *PluginInfo {
	c := &struct {
		PluginInfo
		connection PluginConnectionInfo
	}{*p, *p.ConnectionInfo}
	c.ConnectionInfo = &c.connection
	c.Options = maps.Clone(p.Options)
	return &c.PluginInfo
}

func (p *PluginInfo) equal(q *PluginInfo) bool {
	return p.Name == q.Name && p.Type == q.Type && p.Version == q.Version && p.AllocID == q.AllocID &&
		*p.ConnectionInfo == *q.ConnectionInfo && maps.Equal(p.Options, q.Options) && sameInstance(p.Instance, q.Instance)
}

// check returns an error if p cannot be registered.
func (p *PluginInfo) check() error {
	switch {
	case p == nil:
		return invalid("plugin info must not be nil")
	case p.Type == "":
		return invalid("Plugin.Type must not be empty")
	case p.ConnectionInfo == nil:
		return invalid("Plugin.ConnectionInfo must not be nil")
	case p.Name == "":
		return invalid("Plugin.Name must not be empty")
	}
	return nil
}
