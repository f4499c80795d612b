package locks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/patchbay-dev/patchbay/fleet"
)

// SettingsCondition is the name of the condition of an [Elector].
const SettingsCondition = "fleet-settings"

// comparison is how the settings of other nodes differ from those of this one.
type comparison struct {
	prefix string // of the keys
	own    string
	notify func(fleet.Condition) // nil for none

	mu        sync.Mutex
	others    map[string]string // by node, those that differ
	condition fleet.Condition
}

// get returns the condition.
func (c *comparison) get() fleet.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.condition
}

// apply records the settings that have changed, or all of them. A deletion has no value. It notifies if the condition has changed.
func (c *comparison) apply(all bool, kvs ...*mvccpb.KeyValue) {
	c.mu.Lock()
	if all {
		c.others = map[string]string{}
	}
	for _, kv := range kvs {
		node, text := strings.TrimPrefix(string(kv.Key), c.prefix), string(kv.Value)
		delete(c.others, node)
		if text != "" && text != c.own && fleet.ValidateNode(node) == nil {
			c.others[node] = text
		}
	}
	before, now := c.condition, fleet.Condition{Name: SettingsCondition, OK: len(c.others) == 0}
	if !now.OK {
		if now.Since = before.Since; before.OK {
			now.Since = time.Now()
		}
		first := slices.Min(slices.Collect(maps.Keys(c.others)))
		now.Message = fmt.Sprintf("nodes of the fleet differ in fleet.exclusive or fleet.presence: %d from this one, node %s for example, which has "+
			"%.200s where this one has %s; exclusive plugins may be active there too: give all nodes the same",
			len(c.others), first, strings.ToValidUTF8(c.others[first], "\uFFFD"), c.own)
	}
	c.condition = now
	c.mu.Unlock()
	if now != before && c.notify != nil {
		c.notify(now)
	}
}
