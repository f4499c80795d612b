package fleet

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net/url"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
)

// The index lists the nodes that have a plugin of a name: below the range of the name there is a key without value for each of them. It is
// a hint: what counts is the record in the node's own range, so a false key cannot send a call to another address.

// index returns what the keys of the nodes begin with that have a plugin of a name. The next thing in a key is the node's place.
func (s Space) index(name string) string { return s.IndexSpace() + url.PathEscape(name) + "/" }

// IndexSpace returns the prefix of the keys of the index. Each node writes its own there.
func (s Space) IndexSpace() string { return s.Base() + "index/" }

func indexKey(s Space, name, node string) string { return s.index(name) + placeOf(node) + "/" + node }

// placeOf returns where in an index a node is, or begins who looks for one. Places are spread evenly.
func placeOf(text string) string { return fmt.Sprintf("%08x", hash(text)>>32) }

func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	// The last bytes change only the low bits much; these have to reach the high ones.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// maxOps is how many operations on the index one transaction has: etcd takes 128 by default.
const maxOps = 100

// indexedNames returns the names of the plugins of a node that belong into the index.
func indexedNames(plugins []*fleetv1.PluginRecord) map[string]bool {
	names := map[string]bool{}
	for _, p := range plugins {
		if p.GetCurrent() {
			names[p.GetName()] = true
		}
	}
	return names
}

// missing returns names of plugins that are not in the index, as many as fit into another transaction.
func (s *session) missing(plugins []*fleetv1.PluginRecord) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(indexedNames(plugins))) {
		if !s.indexed[name] && len(names) < maxOps {
			names = append(names, name)
		}
	}
	return names
}

// index returns the requests that add names to the index.
func (s *session) index(names []string) (puts []clientv3.Op) {
	for _, name := range names {
		s.indexed[name] = false // until the transaction succeeds
		puts = append(puts, clientv3.OpPut(indexKey(s.config.Space, name, s.config.Node), "", clientv3.WithLease(s.leases.retention)))
	}
	return puts
}

// putIndex removes the names that the node no longer has from the index, and adds those that did not fit into the transaction of the node.
func (s *session) putIndex(ctx context.Context, plugins []*fleetv1.PluginRecord) error {
	wanted := indexedNames(plugins)
	for {
		added, removed := s.missing(plugins), []string(nil)
		then := s.index(added)
		for name := range s.indexed {
			if !wanted[name] && len(then) < maxOps {
				then = append(then, clientv3.OpDelete(indexKey(s.config.Space, name, s.config.Node)))
				removed = append(removed, name)
			}
		}
		if len(then) == 0 {
			return nil
		}
		if _, err := s.commit(ctx, s.mine(), then); err != nil {
			return err
		}
		for _, name := range added {
			s.indexed[name] = true
		}
		for _, name := range removed {
			delete(s.indexed, name)
		}
	}
}

// commit commits a transaction. Whatever ends the leases of the node, or makes conditions fail, is errLeaseLost.
func (s *session) commit(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op) (revision int64, err error) {
	response, err := s.store.commit(ctx, conditions, then)
	switch {
	case err != nil && !isLeaseUnknown(err):
		return 0, err
	case err != nil || !response.Succeeded:
		return 0, errLeaseLost // or another daemon has the name now, which the next session finds out
	}
	return response.Header.GetRevision(), nil
}

// nodeIn returns the node of a key of the index.
func nodeIn(prefix, key string) (node string, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	at, node, both := strings.Cut(rest, "/")
	return node, ok && both && ValidateNode(node) == nil && at == placeOf(node)
}
