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

	// ConnectionInfo says where the instance answers. It must be set.
	ConnectionInfo *PluginConnectionInfo

	// AllocID identifies the instance among those of its type and name. The empty identifier is as valid as any other.
	AllocID string

	// Options is further metadata, which the registry stores without interpreting it.
	Options map[string]string

	// Instance is what the host that discovered the instance knows of it; nil for one that a program registered itself. In an entry for a role
	// it has only Type, which is the type of the plugin, Account and Socket. It is not copied and must not be changed. In a storage it is
	// always nil, and its contents are in Options, under keys that begin with "patchbay.dev/".
	Instance *plugin.Instance

	// Damage says which part of Instance could not be read from the storage.
	Damage error
}

// PluginConnectionInfo is what is needed to connect to a plugin.
type PluginConnectionInfo struct {
	// SocketPath is the path of the Unix socket on which the plugin's own services answer.
	SocketPath string
}

// PluginDispenser creates a client for the instance that info describes. The registry calls it without locks held.
type PluginDispenser func(info *PluginInfo) (any, error)

// RegistryState is what a StateStorage keeps: by type and name, a list of *PluginInfo, newest first.
type RegistryState struct {
	Plugins map[string]map[string]*list.List

	// Reservations are those that a ChangeStorage was given, in no order. They are not part of states that are put.
	Reservations []plugin.Reservation
}

// EventType says what a PluginUpdateEvent tells of.
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

	// Info is the instance that changed, as it is after the change, or as it last was if it was removed. It is nil in a resync.
	Info *PluginInfo

	// Plugins is set in a resync only: every instance that there is, of the type subscribed to, sorted by type and name and
	// newest first. The events that follow come after this picture.
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

// check reports what makes p unfit for the registry.
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
