package locks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/fleet"
)

// SettingsCondition is the name of the condition of an [Elector].
const SettingsCondition = "fleet-settings"

// comparison is how the settings of other nodes differ from those of this one.
type comparison struct {
	prefix string // of the keys
	own    string
	notify func(fleet.Condition)

	mu        sync.Mutex
	others    map[string]string // by node, those that differ
	condition fleet.Condition
}

func newComparison(s fleet.Space, own fleet.Settings, notify func(fleet.Condition)) *comparison {
	same := fleet.Condition{Name: SettingsCondition, OK: true}
	return &comparison{prefix: s.SettingsKey(""), own: own.String(), notify: notify, condition: same}
}

// get returns the condition.
func (c *comparison) get() fleet.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.condition
}

// reset records all settings that there are. It notifies if the condition has changed.
func (c *comparison) reset(kvs []*mvccpb.KeyValue) { c.change(map[string]string{}, kvs) }

// apply records changes. A deletion has no value.
func (c *comparison) apply(events []*clientv3.Event) {
	var kvs []*mvccpb.KeyValue
	for _, event := range events {
		kvs = append(kvs, event.Kv)
	}
	c.change(c.others, kvs)
}

func (c *comparison) change(others map[string]string, kvs []*mvccpb.KeyValue) {
	c.mu.Lock()
	c.others = others
	for _, kv := range kvs {
		node, text := strings.TrimPrefix(string(kv.Key), c.prefix), string(kv.Value)
		delete(c.others, node)
		if text != "" && text != c.own && fleet.ValidateNode(node) == nil {
			c.others[node] = text
		}
	}
	before := c.condition
	c.condition = c.judge(before)
	now := c.condition
	c.mu.Unlock()
	if now != before && c.notify != nil {
		c.notify(now)
	}
}

// judge returns the condition. The caller holds mu.
func (c *comparison) judge(before fleet.Condition) fleet.Condition {
	if len(c.others) == 0 {
		return fleet.Condition{Name: SettingsCondition, OK: true}
	}
	if before.OK {
		before.Since = time.Now()
	}
	first := slices.Min(slices.Collect(maps.Keys(c.others)))
	return fleet.Condition{Name: SettingsCondition, Since: before.Since, Message: fmt.Sprintf(
		"nodes of the fleet differ in fleet.exclusive or fleet.presence: %d from this one, node %s for example, which has %.200s where this one "+
			"has %s; exclusive plugins may be active there too: give all nodes the same",
		len(c.others), first, strings.ToValidUTF8(c.others[first], "\uFFFD"), c.own)}
}
