package fleet_test

import (
	"context"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
)

// TestIndexHostile: a key in the index is a hint. A node is called only if it says in its own range that it has the plugin, and one whose keys
// were removed from the index is still called by its name.
func TestIndexHostile(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	cluster, evil := connect(t, etcd.client), etcd.admin()
	startNode(t, cluster, "a", "one", "two").published(t)
	startNode(t, cluster, "b", "one").published(t)
	index := indexRange()
	for _, kv := range indexed(t, evil, 3).Kvs {
		key := string(kv.Key)
		switch rest := strings.TrimPrefix(key, index); {
		case strings.HasPrefix(rest, "one/") && strings.HasSuffix(rest, "/b"): // as if b had it too
			key = index + strings.Replace(rest, "one/", "two/", 1)
			do(t, "write", func(ctx context.Context) error { _, err := evil.Put(ctx, key, "127.0.0.1:1"); return err })
		case strings.HasPrefix(rest, "one/"): // as if a had it no more
			do(t, "remove", func(ctx context.Context) error { _, err := evil.Delete(ctx, key); return err })
		}
	}
	do(t, "write", func(ctx context.Context) error { _, err := evil.Put(ctx, index+"two/00000000/nobody", ""); return err })
	c := newLookup(t, etcd.client)
	c.finds("two", nodecall.Policy{}, "a")
	c.finds("one", nodecall.Policy{Node: "a"}, "a")
	c.finds("one", nodecall.Policy{}, "b")
}
