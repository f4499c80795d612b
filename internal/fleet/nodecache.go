package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	maxCached, maxCacheSize = 256, 1 << 20 // the nodes in the file, and its size in bytes
	maxCachedPlugins        = 512          // of one node
	// cacheInterval is the least time between two writes. It doubles up to maxCacheInterval while changes continue, so that calling more
	// nodes in turn than are kept does not wear out a disk.
	cacheInterval, maxCacheInterval = 5 * time.Second, time.Minute
)

// nodeCache keeps the nodes that were called last in a file, so that they can be called after a restart while etcd cannot be reached. It is
// safe for concurrent use.
type nodeCache struct {
	file    string // empty for none
	log     *slog.Logger
	changed chan struct{} // gets a value when nodes has changed
	cancel  context.CancelFunc
	saving  sync.WaitGroup

	mu    sync.Mutex
	nodes map[string]*cachedNode
}

// cachedNode is a node as it was when it was last followed.
type cachedNode struct {
	*member
	called time.Time
}

// nodeRecord is a node in the file: what a call needs.
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
	c := &nodeCache{file: file, log: log, changed: make(chan struct{}, 1), nodes: map[string]*cachedNode{}}
	ctx, cancel := context.WithCancel(context.Background())
	if c.cancel = cancel; file != "" {
		c.load()
		before := c.encode()
		c.saving.Go(func() { c.save(ctx, before) })
	}
	return c
}

// close writes what has changed.
func (c *nodeCache) close() {
	c.cancel()
	c.saving.Wait()
}

// add records that a node was called.
func (c *nodeCache) add(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.nodes[m.node.Name]; known != nil {
		known.called = time.Now()
		return
	}
	if len(c.nodes) >= maxCached {
		delete(c.nodes, c.lastCalled()[maxCached-1])
	}
	c.nodes[m.node.Name] = &cachedNode{m, time.Now()}
	Notify(c.changed)
}

// lastCalled returns the names of the nodes, the one that was called last first. The caller holds mu.
func (c *nodeCache) lastCalled() []string {
	return slices.SortedFunc(maps.Keys(c.nodes), func(a, b string) int { return c.nodes[b].called.Compare(c.nodes[a].called) })
}

// update replaces a cached node by what etcd has, nil for nothing. A node without plugins that can be called is removed.
func (c *nodeCache) update(name string, m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch known := c.nodes[name]; {
	case known == nil:
		return
	case m == nil || len(m.callable(Filter{})) == 0:
		delete(c.nodes, name)
	default:
		known.member = m
	}
	Notify(c.changed)
}

// get returns a cached node; nil for none.
func (c *nodeCache) get(name string) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.nodes[name]; known != nil {
		return known.member
	}
	return nil
}

// find returns the names of the cached nodes that have plugins which pass a filter.
func (c *nodeCache) find(f Filter) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, known := range c.nodes {
		if len(known.callable(f)) > 0 {
			names = append(names, name)
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
	for i, r := range records {
		m := &member{node: Node{Name: r.Node, State: NodeUnreachable, Address: r.Address, Labels: r.Labels, Cordon: Cordon{Drained: r.Drained}}}
		for _, p := range r.Plugins {
			m.plugins = append(m.plugins,
				&Plugin{Type: p.Type, Name: p.Name, Roles: p.Roles, Published: plugin.StateRegistered, Current: true})
		}
		c.nodes[r.Node] = &cachedNode{m, time.Now().Add(-time.Duration(i))}
	}
}

func readRecords(file string) (records []nodeRecord, err error) {
	text, err := regular.Read(file)
	if err == nil {
		err = json.Unmarshal(text, &records)
	}
	isInvalid := func(r nodeRecord) bool { return ValidateNode(r.Node) != nil }
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
			} else if Notify(c.changed); !failed { // so that it is tried again
				c.log.Warn("fleet: cannot remember the nodes that were called; after a restart they are called only once etcd can be reached",
					"error", err)
			}
			failed = err != nil
		}
		backoff.Pause(ctx, pause)
	}
}

// encode returns the text of the file: the nodes that were called last, as many as fit.
func (c *nodeCache) encode() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	size := 0
	for _, name := range c.lastCalled() {
		m := c.nodes[name].member
		r := nodeRecord{Node: name, Address: m.node.Address, Labels: m.node.Labels, Drained: m.node.Cordon.Drained}
		for _, i := range m.callable(Filter{}) {
			r.Plugins = append(r.Plugins, pluginName{i.Type, i.Name, i.Roles})
		}
		r.Plugins = r.Plugins[:min(len(r.Plugins), maxCachedPlugins)]
		line, err := json.Marshal(r)
		if size += len(line) + 3; err == nil && size < maxCacheSize {
			lines = append(lines, string(line))
		}
	}
	slices.Sort(lines) // so that the order of the calls makes no difference
	return "[" + strings.Join(lines, ",\n") + "]\n"
}
