package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
)

var (
	// ErrNoNode says that etcd has no record of a node.
	ErrNoNode = errors.New("the fleet has no such node")
	// errNodeThere says that a node is present and cannot be forgotten.
	errNodeThere = errors.New("the node is still running; stop its daemon or, if that was killed, wait until its presence expires")
)

// maxLabels bounds the labels of a node, and maxLabel the length of a key or a value in bytes.
const (
	maxLabels = 64
	maxLabel  = 128
)

// ValidateLabels returns an error if labels cannot be those of a node: there may be at most 64, whose keys and values have at most 128
// letters, digits, ".", "-", "_" and "/". A value may be empty.
func ValidateLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("there are %d labels: use at most %d", len(labels), maxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, text := range []string{key, labels[key]} {
			strange := strings.ContainsFunc(text, func(r rune) bool {
				return (r < 'a' || 'z' < r) && (r < 'A' || 'Z' < r) && (r < '0' || '9' < r) && !strings.ContainsRune(".-_/", r)
			})
			if strange || len(text) > maxLabel || key == "" {
				return fmt.Errorf(`label %q with value %q: use letters, digits, ".", "-", "_" and "/", at most %d, and a key that is not empty`,
					key, labels[key], maxLabel)
			}
		}
	}
	return nil
}

// Drain steers calls that may go to any node away from this one, and makes it give up its locks, until [Cluster.Uncordon], also across
// restarts of its daemon. by is the name of the node on which that was requested. The error is
// [ErrNoNode] if etcd has no record of the node.
func (c *Cluster) Drain(ctx context.Context, s Space, node, by string) error {
	value, err := deterministic.Marshal(&fleetv1.Cordon{Since: timestamp(time.Now()), By: valid(by)})
	if err != nil {
		return err
	}
	return c.operate(ctx, "drain", node, func(to store) error {
		return c.onNode(ctx, to, s, node, nil, clientv3.OpPut(s.NodeRange(node)+cordonKey, string(value)))
	})
}

// Uncordon undoes Drain. It is not an error if the node is not drained, or does not exist.
func (c *Cluster) Uncordon(ctx context.Context, s Space, node string) error {
	return c.operate(ctx, "uncordon", node, func(to store) error {
		_, err := to.commit(ctx, nil, []clientv3.Op{clientv3.OpDelete(s.NodeRange(node) + cordonKey)})
		return err
	})
}

// Forget removes a node that is gone from etcd, before its retention expires. It fails while the node is present, and with [ErrNoNode] if
// etcd has no record of it. Its names in the index of plugins, which lead nowhere then, stay until its retention expires.
func (c *Cluster) Forget(ctx context.Context, s Space, node string) error {
	return c.operate(ctx, "forget", node, func(to store) error {
		gone := clientv3.Compare(clientv3.CreateRevision(s.NodeRange(node)+presenceKey), "=", 0)
		return c.onNode(ctx, to, s, node, []clientv3.Cmp{gone}, clientv3.OpDelete(s.NodeRange(node), clientv3.WithPrefix()))
	})
}

// onNode changes the keys of a node, under conditions, if etcd has any of it.
func (c *Cluster) onNode(ctx context.Context, to store, s Space, node string, conditions []clientv3.Cmp, then ...clientv3.Op) error {
	found, err := to.get(ctx, s.NodeRange(node), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	if found.Count == 0 {
		return ErrNoNode
	}
	answer, err := to.commit(ctx, conditions, then)
	if err == nil && !answer.Succeeded {
		err = errNodeThere
	}
	return err
}

// operate changes a node.
func (c *Cluster) operate(ctx context.Context, what, node string, do func(to store) error) error {
	err := ValidateNode(node)
	if err == nil {
		err = c.try(ctx, do)
	}
	if err != nil {
		return fmt.Errorf("cannot %s node %s: %w", what, node, Explain(err))
	}
	return nil
}

// try calls do with one member of etcd after the other until it succeeds, or fails for a reason that another member would have too.
func (c *Cluster) try(ctx context.Context, do func(store) error) error {
	d := newDialer(c)
	_, err := attempt(ctx, d, func() (bool, error) {
		member, err := d.dial(ctx, c.config.Timeout)
		if err != nil {
			return false, err
		}
		defer member.close()
		err = do(member)
		return err == nil, err
	})
	return err
}

// LockState is the state of a lock as recorded in etcd.
type LockState struct {
	Lock
	// Node holds the lock, with the fencing token Token. Both are zero if no node does.
	Node  string
	Token int64
	// Candidates is how many nodes compete for it, including the holder.
	Candidates int
}

// Locks returns the locks that somebody holds or wants, ordered by type and name. The error says why etcd did not answer.
func (c *Cluster) Locks(ctx context.Context, s Space) ([]LockState, error) {
	var all Contenders
	err := c.try(ctx, func(from store) (err error) {
		all = Contenders{}
		_, err = readPages(ctx, from, s.contenders(), func(kv *mvccpb.KeyValue) { all.Put(s, kv) })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the locks: %w", Explain(err))
	}
	states := make([]LockState, 0, len(all))
	for lock := range all {
		node, _ := all.holder(lock)
		states = append(states, LockState{Lock: lock, Node: node, Token: all.First(lock).Token, Candidates: len(all.nodes(lock))})
	}
	slices.SortFunc(states, func(a, b LockState) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	return states, nil
}
