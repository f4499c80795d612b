package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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

// encode returns a text that is the same for settings that are alike.
func (s Settings) encode() string {
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
	text := Settings{s.config.Exclusive, s.config.Presence}.encode()
	return clientv3.OpPut(s.config.Space.SettingsKey(s.config.Node), text, clientv3.WithLease(s.leases.presence))
}

// SettingsCondition is the name of the condition of an [Elector].
const SettingsCondition = "fleet-settings"

// comparison is how the settings of other nodes differ from those of this one.
type comparison struct {
	space Space
	own   string // as encode returns it
	told  func(Condition)

	mu        sync.Mutex
	others    map[string]string // by node, those that differ
	condition Condition
}

func newComparison(s Space, own Settings, told func(Condition)) *comparison {
	return &comparison{
		space: s, own: own.encode(), told: told, others: map[string]string{}, condition: Condition{Name: SettingsCondition, OK: true},
	}
}

// get returns the condition.
func (c *comparison) get() Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.condition
}

// change takes the settings over that were written, by key; empty for those that are gone. Fresh says that these are all that there are. It
// calls told, if there is one, when the condition is another one.
func (c *comparison) change(fresh bool, texts map[string]string) {
	c.mu.Lock()
	if fresh {
		c.others = map[string]string{}
	}
	for key, text := range texts {
		node := strings.TrimPrefix(key, c.space.settings())
		delete(c.others, node)
		if text != "" && text != c.own && ValidateNode(node) == nil {
			c.others[node] = text
		}
	}
	before := c.condition
	c.condition = c.judge(before)
	now := c.condition
	c.mu.Unlock()
	if now != before && c.told != nil {
		c.told(now)
	}
}

// apply takes changes over. A deletion has no value.
func (c *comparison) apply(events []*clientv3.Event) {
	texts := map[string]string{}
	for _, event := range events {
		texts[string(event.Kv.Key)] = string(event.Kv.Value)
	}
	c.change(false, texts)
}

// judge returns the condition. The caller holds mu.
func (c *comparison) judge(before Condition) Condition {
	if len(c.others) == 0 {
		return Condition{Name: SettingsCondition, OK: true}
	}
	if before.OK {
		before.Since = time.Now()
	}
	first := slices.Min(slices.Collect(maps.Keys(c.others)))
	text := c.others[first]
	return Condition{Name: SettingsCondition, Since: before.Since, Message: fmt.Sprintf(
		"nodes of the fleet differ in fleet.exclusive or fleet.presence: %d from this one, node %s for example, which has %.200s where this one "+
			"has %s; exclusive plugins may be active there too: give all nodes the same", len(c.others), first, valid(text), c.own)}
}
