package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	maxCached, maxCacheSize = 256, 1 << 20 // the nodes in the file, and its size in bytes
	maxCachedPlugins        = 512          // of one node
	// cacheInterval is the minimum time between two writes. It doubles up to maxCacheInterval while changes continue, so that calls to more
	// nodes than the cache has do not wear out a disk.
	cacheInterval, maxCacheInterval = 5 * time.Second, time.Minute
)

// nodeCache keeps the nodes that were called last in a file, so that they can be called after a restart while etcd is unavailable. It is
// safe for concurrent use.
type nodeCache struct {
	file    string // empty for none
	log     *slog.Logger
	changed chan struct{} // receives a value after a change of nodes
	cancel  context.CancelFunc
	saving  sync.WaitGroup

	mu    sync.Mutex
	nodes []*Node // ordered by the time of their last calls, the most recent one last
}

// nodeRecord is a node in the file, with the data that a call needs.
type nodeRecord struct {
	Node    string            `json:"node"`
	Address string            `json:"address"`
	Labels  map[string]string `json:"labels,omitempty"`
	Drained bool              `json:"drained,omitempty"`
	Plugins []pluginName      `json:"plugins"`
}

type pluginName struct {
	Type  string   `json:"type"`
	Name  string   `json:"name"`
	Roles []string `json:"roles,omitempty"`
}

// openNodeCache reads the file. The caller calls close.
func openNodeCache(file string, log *slog.Logger) *nodeCache {
	c := &nodeCache{file: file, log: log, changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	if c.cancel = cancel; file != "" {
		c.load()
		before := c.encode()
		c.saving.Go(func() { c.save(ctx, before) })
	}
	return c
}

// close saves the changes and stops the goroutine of the cache.
func (c *nodeCache) close() {
	c.cancel()
	c.saving.Wait()
}

// index returns the index of a node, negative for none. The caller holds mu.
func (c *nodeCache) index(name string) int {
	return slices.IndexFunc(c.nodes, func(n *Node) bool { return n.Name == name })
}

func (c *nodeCache) add(n *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.index(n.Name); i >= 0 {
		n = c.nodes[i]
		c.nodes = slices.Delete(c.nodes, i, i+1)
	} else {
		c.nodes = c.nodes[max(len(c.nodes)-maxCached+1, 0):]
		Notify(c.changed)
	}
	c.nodes = append(c.nodes, n)
}

// update replaces a cached node with its record in etcd, nil for none. A node without plugins that can be called is removed.
func (c *nodeCache) update(name string, n *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch i := c.index(name); {
	case i < 0:
		return
	case n == nil || len(n.callable(Filter{})) == 0:
		c.nodes = slices.Delete(c.nodes, i, i+1)
	default:
		c.nodes[i] = n
	}
	Notify(c.changed)
}

func (c *nodeCache) get(name string) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.index(name); i >= 0 {
		return c.nodes[i]
	}
	return nil
}

// find returns the names of the cached nodes with plugins that pass a filter.
func (c *nodeCache) find(f Filter) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if len(n.callable(f)) > 0 {
			names = append(names, n.Name)
		}
	}
	return names
}

// load reads the file. A file that cannot be used is renamed.
func (c *nodeCache) load() {
	records, err := readRecords(c.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Warn("fleet: the nodes that were called before the start are not known, and are not called until etcd can be reached",
			"file", c.file, "error", err, "kept as", c.file+".damaged")
		_ = os.Rename(c.file, c.file+".damaged") // if this fails, the file is overwritten
	}
	for _, r := range records {
		n := &Node{
			NodeRecord: &fleetv1.NodeRecord{Address: r.Address, Labels: r.Labels}, Name: r.Node, State: NodeUnreachable,
			Cordon: Cordon{Drained: r.Drained},
		}
		for _, p := range r.Plugins {
			n.plugins = append(n.plugins, &fleetv1.PluginRecord{
				Type: p.Type, Name: p.Name, Roles: p.Roles, State: string(plugin.StateRegistered), Current: true,
			})
		}
		c.nodes = append(c.nodes, n)
	}
}

func readRecords(file string) (records []nodeRecord, err error) {
	text, err := regular.Read(file)
	if err == nil {
		err = json.Unmarshal(text, &records)
	}
	isInvalid := func(r nodeRecord) bool { return keys.ValidateNode(r.Node) != nil }
	if err == nil && (len(text) > maxCacheSize || len(records) > maxCached || slices.ContainsFunc(records, isInvalid)) {
		return nil, errors.New("it is not a list of nodes that was written here")
	}
	return records, err
}

// save writes the file after changes, until ctx ends. before is the content of the file.
func (c *nodeCache) save(ctx context.Context, before string) {
	failed := false
	for open, pause := true, cacheInterval; open; pause = min(2*pause, maxCacheInterval) {
		idle := time.Now()
		select {
		case <-c.changed:
		case <-ctx.Done():
			open = false
		}
		if time.Since(idle) > maxCacheInterval {
			pause = cacheInterval
		}
		if text := c.encode(); text != before {
			err := regular.Replace(c.file, text)
			if err == nil {
				before = text
			} else if Notify(c.changed); !failed { // to retry
				c.log.Warn("fleet: cannot remember the nodes that were called; after a restart they are called only once etcd can be reached",
					"error", err)
			}
			failed = err != nil
		}
		backoff.Pause(ctx, pause)
	}
}

// encode returns the text of the file: as many of the nodes that were called last as fit.
func (c *nodeCache) encode() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	size := 0
	for _, n := range slices.Backward(c.nodes) {
		r := nodeRecord{Node: n.Name, Address: n.GetAddress(), Labels: n.GetLabels(), Drained: n.Cordon.Drained}
		for _, i := range n.callable(Filter{}) {
			r.Plugins = append(r.Plugins, pluginName{i.GetType(), i.GetName(), i.GetRoles()})
		}
		r.Plugins = r.Plugins[:min(len(r.Plugins), maxCachedPlugins)]
		line, err := json.Marshal(r)
		if size += len(line) + 3; err == nil && size < maxCacheSize {
			lines = append(lines, string(line))
		}
	}
	slices.Sort(lines) // so that the text does not depend on the order of the calls
	return "[" + strings.Join(lines, ",\n") + "]\n"
}
