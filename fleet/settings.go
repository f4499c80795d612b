package fleet

import (
	"encoding/json"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Settings are the settings that should be the same on all nodes of a fleet.
type Settings struct {
	// Exclusive are the types, or roles, of plugins of which one instance in the fleet may be active.
	Exclusive []string
	// Presence is that of a [PublisherConfig].
	Presence time.Duration
}

// settingsValue is what a node keeps in etcd of its settings.
type settingsValue struct {
	Exclusive []string `json:"exclusive"`
	Presence  string   `json:"presence"`
}

// String returns what a node keeps in etcd: a text that is the same for settings that are alike.
func (s Settings) String() string {
	exclusive := slices.Compact(append([]string{}, slices.Sorted(slices.Values(s.Exclusive))...))
	value := settingsValue{Exclusive: exclusive, Presence: s.Presence.String()}
	text, err := json.Marshal(value)
	if err != nil {
		return "" // strings can be encoded
	}
	return string(text)
}

func (s Space) settings() string { return s.Base() + "settings/" }

// SettingsKey returns the key in which a node keeps its settings. No other node needs to write it.
func (s Space) SettingsKey(node string) string { return s.settings() + node }

// settle returns the request that writes the settings of the node, which nodes that compete for locks compare.
func (s *session) settle() clientv3.Op {
	text := Settings{s.config.Exclusive, s.config.Presence}.String()
	return clientv3.OpPut(s.config.Space.SettingsKey(s.config.Node), text, clientv3.WithLease(s.leases.presence))
}
