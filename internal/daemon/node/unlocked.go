package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// unlocked knows the locks for which other nodes compete and this one does not, because its configuration does not list their types. The
// node does not call its own plugins of these: other nodes rely on there being one holder.
type unlocked struct {
	node      string // this one
	exclusive []string
	found     chan struct{} // closed when a node competes for locks
	once      sync.Once

	mu     sync.Mutex
	nodes  map[plugin.Name]string // one that competes
	status plugin.Condition
}

func newUnlocked(node string, exclusive []string) *unlocked {
	ok := plugin.Condition{Name: locks.SettingsCondition, OK: true}
	return &unlocked{node: node, exclusive: exclusive, found: make(chan struct{}), status: ok}
}

// begin is called when a node competes for locks. As long as none does, nothing is followed.
func (u *unlocked) begin() { u.once.Do(func() { close(u.found) }) }

// run follows the locks until ctx ends, once there are any.
func (u *unlocked) run(ctx context.Context, lookup *fleet.Lookup, announce func(plugin.Condition)) {
	select {
	case <-u.found:
	case <-ctx.Done():
		return
	}
	changed, states := lookup.FollowLocks()
	u.follow(ctx, changed, states, announce)
}

// unlockedPause is how long changes of the locks are collected after one was taken over: each costs as much as there are contenders.
const unlockedPause = time.Second

func (u *unlocked) follow(
	ctx context.Context, changed <-chan struct{}, states func() []keys.LockState, announce func(plugin.Condition),
) {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		before := u.condition()
		u.set(states())
		if now := u.condition(); now != before {
			announce(now)
		}
		backoff.Pause(ctx, unlockedPause)
	}
}

// set records which nodes compete.
func (u *unlocked) set(states []keys.LockState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.nodes = map[plugin.Name]string{}
	types := map[string]string{}
	for _, state := range states {
		// Its own keys are of a time when it had another configuration.
		others := slices.DeleteFunc(state.Nodes, func(node string) bool { return node == u.node })
		if slices.Contains(u.exclusive, state.Lock.Type) || len(others) == 0 {
			continue
		}
		u.nodes[state.Lock] = others[0]
		if before := types[state.Lock.Type]; before == "" || others[0] < before {
			types[state.Lock.Type] = others[0]
		}
	}
	if len(types) == 0 {
		u.status = plugin.Condition{Name: locks.SettingsCondition, OK: true}
		return
	}
	if u.status.OK {
		u.status.OK, u.status.Since = false, time.Now()
	}
	names := slices.Sorted(maps.Keys(types))
	u.status.Message = fmt.Sprintf("other nodes compete for locks of %s, node %s for example, and fleet.exclusive of this node does not list "+
		"that: it does not call its own plugins of these names; give all nodes the same fleet.exclusive",
		untrusted.Valid(strings.Join(names, ", ")), types[names[0]])
}

// elsewhere returns a node that competes for a lock for which this one does not; empty for none.
func (u *unlocked) elsewhere(l plugin.Name) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.nodes[l]
}

// condition returns whether there are any such locks.
func (u *unlocked) condition() plugin.Condition {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.status
}
