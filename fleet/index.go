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

// The index says which nodes have a plugin of a name: below the range of the name there is a key without value for each of them. It is a
// hint: what counts is what the node says in its own range. So nobody who writes to the index can have a call go to an address of his.

// index returns what the keys of the nodes begin with that have a plugin of a name. The next thing in a key is the node's place.
func (s Space) index(name string) string { return s.Base() + "index/" + url.PathEscape(name) + "/" }

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

// indexing is what a publisher knows of its keys in the index.
type indexing struct {
	// names are those that may be there, and whether they are, under the present lease.
	names map[string]bool
	// denied says that etcd lets the node write no index. Callers then read the whole fleet where they find nobody.
	denied bool
}

// forget is called when the node is written as a whole, under a lease that may be new.
func (i *indexing) forget() {
	for name := range i.names {
		i.names[name] = false
	}
	i.denied = false
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

// missing returns names of plugins that are not in the index, as many as go with another transaction.
func (i *indexing) missing(plugins []*fleetv1.PluginRecord) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(indexedNames(plugins))) {
		if !i.names[name] && len(names) < maxOps {
			names = append(names, name)
		}
	}
	return names
}

// put is called when names are in the index.
func (i *indexing) put(names []string) {
	for _, name := range names {
		i.names[name] = true
	}
}

// index returns the requests that add names to the index.
func (s *session) index(names []string) (puts []clientv3.Op) {
	for _, name := range names {
		s.indexing.names[name] = false // until it is known
		puts = append(puts, clientv3.OpPut(indexKey(s.config.Space, name, s.config.Node), "", clientv3.WithLease(s.leases.retention)))
	}
	return puts
}

// denyIndex is called when etcd lets the node write no index.
func (s *session) denyIndex() {
	s.indexing.denied = true
	s.config.Logger.Warn("fleet: the node may not write the index of plugins, and who looks for them reads the whole fleet; "+
		"grant its user readwrite on "+s.config.Space.Base()+"index/", "node", s.config.Node)
}

// putIndex brings the index to what the node has: it removes what the node has no more, and adds what did not go with the node.
func (s *session) putIndex(ctx context.Context, plugins []*fleetv1.PluginRecord) error {
	wanted := indexedNames(plugins)
	for !s.indexing.denied {
		added, removed := s.indexing.missing(plugins), []string(nil)
		then := s.index(added)
		for name := range s.indexing.names {
			if !wanted[name] && len(then) < maxOps {
				then = append(then, clientv3.OpDelete(indexKey(s.config.Space, name, s.config.Node)))
				removed = append(removed, name)
			}
		}
		if len(then) == 0 {
			return nil
		}
		response, err := s.store.commit(ctx, s.mine(), then)
		switch {
		case isDenied(err):
			s.denyIndex()
			return nil
		case err != nil && !isLeaseUnknown(err):
			return err
		case err != nil || !response.Succeeded:
			return errLeaseLost
		}
		s.indexing.put(added)
		for _, name := range removed {
			delete(s.indexing.names, name)
		}
	}
	return nil
}

// nodeIn returns the node of a key of the index.
func nodeIn(prefix, key string) (node string, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	at, node, both := strings.Cut(rest, "/")
	return node, ok && both && ValidateNode(node) == nil && at == placeOf(node)
}
