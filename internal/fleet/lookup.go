package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
)

const (
	// few is how many nodes a caller reads that may take any of those which have a plugin, and maxFew how many it knows the names of.
	few, maxFew = 16, 64
	// viewIdle is how long something is followed after it was last asked for, and unreadWait how long a call that could go somewhere waits
	// for what was not read yet.
	viewIdle, unreadWait = 5 * time.Minute, time.Second
	// maxViews bounds what is followed at once, besides what somebody waits for, and maxUnread what one user waits for that was never read.
	maxViews, maxUnread = 4096, 1024
)

// LookupConfig configures a [Lookup].
type LookupConfig struct {
	Space Space
	// Whole returns a reader of the whole fleet, and a function that releases it, for what the index cannot answer: all instances of a
	// plugin, and labels that few nodes have. If it is nil, the lookup opens a reader when it first needs one.
	Whole func() (r *Reader, release func(), err error)
	// NodeFile remembers the nodes that were called, so that the next start can call them before it has reached etcd. No two lookups may
	// share the file. Empty for none; its directory must exist.
	NodeFile string
	Logger   *slog.Logger // logs when etcd is lost and found again; nil for no log
}

// Lookup finds the plugins that are called, and follows only those: for a plugin that may be called on any node, a few of the nodes that
// have it; otherwise the node that the call names. Its cost does not depend on the size of the fleet. Once a lock is asked for, it follows
// all locks, which costs more the more nodes compete for them. It connects to etcd for the first request and disconnects after 5 minutes
// without one. While etcd is unavailable, it answers with what it last knew. All methods are safe for concurrent use.
type Lookup struct {
	follower
	config LookupConfig
	place  string // the place in the index at which this program looks for any node
	views  map[viewKey]*view
	away   chan struct{} // closed while the health is not current
	whole  *Reader       // opened by the lookup itself; nil if there is none

	called   map[string]*remembered // by the name of the node
	recalled bool                   // what was read from the file is followed
	unsaved  chan struct{}          // gets a value when called changes
	saving   sync.WaitGroup
}

// OpenLookup returns a lookup, which does not connect yet. The error says what is invalid in the space. The caller calls Close.
func OpenLookup(c *Cluster, config LookupConfig) (l *Lookup, err error) {
	if config.Whole == nil {
		config.Whole = func() (*Reader, func(), error) { return l.open(c) }
	}
	l, err = openLookup(newDialer(c), c.config.Timeout, config)
	return l, err
}

func openLookup(d dialer, timeout time.Duration, config LookupConfig) (*Lookup, error) {
	if err := config.Space.Validate(); err != nil {
		return nil, fmt.Errorf("cannot look plugins up in the fleet: %w", err)
	}
	l := &Lookup{
		config: config, place: fmt.Sprintf("%08x", rand.Uint32()), views: map[viewKey]*view{}, away: make(chan struct{}),
		called: map[string]*remembered{}, unsaved: make(chan struct{}, 1),
	}
	l.init(l, d, timeout, config.Logger, Health{Current: true})
	if config.NodeFile != "" {
		l.load()
		before := l.encode()
		l.saving.Go(func() { l.save(before) })
	}
	l.start()
	return l, nil
}

// Close aborts all requests, and returns when nothing of the lookup is left. A second call does nothing.
func (l *Lookup) Close() {
	l.stop()
	l.saving.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.whole != nil {
		l.whole.Close()
	}
}

// open returns the reader of a lookup that was given none.
func (l *Lookup) open(c *Cluster) (*Reader, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.done) {
		return nil, nil, ErrClosed
	}
	if l.whole == nil {
		l.whole = Open(c, ReaderConfig{Space: l.config.Space, Logger: l.config.Logger})
	}
	return l.whole, func() {}, nil
}

// Find is a [Finder]. For a plugin that may be called on any node, it returns the instances on a few nodes, different ones for each
// program, unless a [Dialer] asks for more. It blocks until they have been read for the first time, or ctx ends; while etcd is unavailable,
// those that are known will do, also from before a restart. After Close, the error is [ErrClosed].
func (l *Lookup) Find(ctx context.Context, f Filter) ([]Instance, error) {
	found, err := l.find(ctx, f)
	for i := range found {
		if l.config.NodeFile != "" {
			found[i].lookup = l
		}
	}
	return found, err
}

func (l *Lookup) find(ctx context.Context, f Filter) ([]Instance, error) {
	switch {
	case len(f.Nodes) > 0:
		return l.on(ctx, f.Nodes, f)
	case f.Few == 0 || len(f.Names) != 1:
		return l.inWhole(ctx, f)
	}
	nodes, all, err := l.nodes(ctx, f)
	switch {
	case err != nil:
		return nil, err
	case f.Few > maxFew && !all:
		return l.inWhole(ctx, f)
	}
	found, err := l.on(ctx, nodes[:min(f.Few, len(nodes))], f)
	// If nothing that is found there is preferred, more is read once: a call can try the nodes that are not, and ask again.
	if f.Few < len(nodes) && !slices.ContainsFunc(found, Instance.preferred) {
		if more, failed := l.on(ctx, nodes, f); failed == nil || len(found) == 0 {
			found, err = more, failed
		}
	}
	if err == nil && len(found) == 0 && !all {
		return l.inWhole(ctx, f)
	}
	return found, err
}

// on returns what can be called on some nodes. Those that are not read in time are left out if others can be called.
func (l *Lookup) on(ctx context.Context, nodes []string, f Filter) ([]Instance, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var views []*view
	var full error // why these are not all
	for i := 0; i < len(nodes) && full == nil; i++ {
		var v *view
		if v, full = l.ask(viewKey{node: nodes[i]}, f.by); full == nil {
			defer l.leave(v)
			views = append(views, v)
		}
	}
	timer := time.NewTimer(unreadWait)
	defer timer.Stop()
	for {
		found, unread, err := l.read(views, f)
		if unread != nil {
			late := timer.C
			if len(found) == 0 {
				late = nil
			}
			if err = l.wait(ctx, unread, late); err == nil {
				continue
			}
			found, _, _ = l.read(views, f) // others may have been read meanwhile
		}
		if len(found) > 0 {
			return found, nil
		}
		return nil, cmp.Or(err, full)
	}
}

// read returns what can be called on nodes, as far as it was read, the first of them that was not, and why another may not be. The caller
// holds mu.
func (l *Lookup) read(views []*view, f Filter) (found []Instance, unread *view, denied error) {
	for _, v := range views {
		node, _ := v.source.(*nodeView)
		switch {
		case !v.isRead():
			unread = cmp.Or(unread, v)
			if known := l.called[node.name]; known != nil {
				found = append(found, known.callable(f)...)
			}
		case v.denied != nil:
			denied = cmp.Or(denied, v.denied)
		case node.member != nil:
			found = append(found, node.member.callable(f)...)
		}
	}
	return found, unread, denied
}

// FollowLocks returns a channel that receives a value after something about the locks has changed, and a function that returns which nodes
// compete for each lock now. The locks are followed until the lookup is closed.
func (l *Lookup) FollowLocks() (changed <-chan struct{}, now func() map[Lock][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.view(viewKey{locks: true, pinned: true}, 0)
	followed, _ := v.source.(*locksView)
	return v.changed, func() map[Lock][]string {
		l.mu.Lock()
		defer l.mu.Unlock()
		competing := map[Lock][]string{}
		for lock := range followed.Contenders {
			competing[lock] = followed.nodes(lock)
		}
		return competing
	}
}

// nodes returns nodes that have a plugin of a name, at most maxFew, and whether these are all.
func (l *Lookup) nodes(ctx context.Context, f Filter) (nodes []string, all bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := viewKey{name: f.Names[0]}
	var called []string
	var late <-chan time.Time
	if v := l.views[k]; v == nil || !v.isRead() {
		called = l.recall(f)
	}
	if len(called) > 0 {
		timer := time.NewTimer(unreadWait)
		defer timer.Stop()
		late = timer.C
	}
	v, err := l.await(ctx, k, f.by, late)
	if errors.Is(err, errLate) {
		return called, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	index, _ := v.source.(*indexView)
	return index.nodes, index.all, v.denied
}

// Holder returns the node that holds a lock, for [DialerConfig].Leader. Exclusive is false for a lock that no node holds or wants. Holder
// follows all locks. It blocks until they have been read for the first time, or ctx ends. After Close, the error is [ErrClosed].
func (l *Lookup) Holder(ctx context.Context, lock Lock) (node string, exclusive bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, err := l.await(ctx, viewKey{locks: true}, 0, nil)
	if err != nil {
		return "", false, err
	}
	locks, _ := v.source.(*locksView)
	node, exclusive = locks.holder(lock)
	return node, exclusive, v.denied
}

func (l *Lookup) inWhole(ctx context.Context, f Filter) ([]Instance, error) {
	reader, release, err := l.config.Whole()
	if err != nil {
		return nil, err
	}
	defer release()
	return reader.Find(ctx, f)
}

const (
	maxRemembered, maxRememberedSize = 256, 1 << 20    // nodes in the file, and its size in bytes
	maxRememberedPlugins             = 512             // of one node
	rememberPause                    = 5 * time.Second // between two looks for what to write
)

// remembered is a node that was called, as it was when it was last followed. A lookup uses it until it has read the node.
type remembered struct {
	*member
	called time.Time
}

// rememberedNode is a node in the file: what a call needs.
type rememberedNode struct {
	Node    string             `json:"node"`
	Address string             `json:"address"`
	Labels  map[string]string  `json:"labels,omitempty"`
	Drained bool               `json:"drained,omitempty"`
	Plugins []rememberedPlugin `json:"plugins"`
}

type rememberedPlugin struct {
	Type  string   `json:"type"`
	Name  string   `json:"name"`
	Roles []string `json:"roles,omitempty"`
}

// remember records that an instance was called.
func (l *Lookup) remember(i Instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.called[i.Node]; known != nil {
		known.called = time.Now()
		return
	}
	if len(l.called) >= maxRemembered {
		delete(l.called, l.lastCalled()[maxRemembered-1])
	}
	l.called[i.Node] = &remembered{i.of, time.Now()}
	tell(l.unsaved)
}

// lastCalled returns the names of the nodes that were called, the last one first. The caller holds mu.
func (l *Lookup) lastCalled() []string {
	return slices.SortedFunc(maps.Keys(l.called), func(a, b string) int { return l.called[b].called.Compare(l.called[a].called) })
}

// update replaces what is remembered of a node by what etcd has, nil for nothing. The caller holds mu.
func (l *Lookup) update(name string, m *member) {
	known := l.called[name]
	switch {
	case known == nil:
		return
	case m == nil || len(m.callable(Filter{})) == 0:
		delete(l.called, name)
	default:
		known.member = m
	}
	tell(l.unsaved)
}

// recall returns the nodes that were called and, as far as is known, have what passes a filter. The caller holds mu.
func (l *Lookup) recall(f Filter) (nodes []string) {
	for name, known := range l.called {
		if len(known.callable(f)) > 0 && len(nodes) < maxFew {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// load reads the file. One that cannot be used is moved aside.
func (l *Lookup) load() {
	file := l.config.NodeFile
	nodes, err := readRemembered(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("fleet: the nodes that were called before the start are not known, and are not called until etcd can be reached",
			"file", file, "error", err, "kept as", file+".damaged")
		_ = os.Rename(file, file+".damaged") // else it stays where it is
	}
	for i, n := range nodes {
		m := &member{node: Node{Name: n.Node, State: NodeUnreachable, Address: n.Address, Labels: n.Labels, Cordon: Cordon{Drained: n.Drained}}}
		for _, p := range n.Plugins {
			m.plugins = append(m.plugins,
				&Plugin{Type: p.Type, Name: p.Name, Roles: p.Roles, Published: reconciler.StateRegistered, Current: true})
		}
		l.called[n.Node] = &remembered{m, time.Now().Add(-time.Duration(i))}
	}
}

func readRemembered(file string) (nodes []rememberedNode, err error) {
	text, err := regular.Read(file)
	if err == nil {
		err = json.Unmarshal(text, &nodes)
	}
	isStrange := func(n rememberedNode) bool { return ValidateNode(n.Node) != nil }
	if err == nil && (len(text) > maxRememberedSize || len(nodes) > maxRemembered || slices.ContainsFunc(nodes, isStrange)) {
		return nil, errors.New("it is not a list of nodes that was written here")
	}
	return nodes, err
}

// save writes the file after changes, until the lookup is closed. before is the content of the file.
func (l *Lookup) save(before string) {
	var failed error
	for open := true; open; {
		select {
		case <-l.unsaved:
		case <-l.done:
			open = false
		}
		if text := l.encode(); text != before {
			err := regular.Replace(l.config.NodeFile, text)
			switch {
			case err == nil:
				before = text
			case failed == nil:
				l.log.Warn("fleet: cannot remember the nodes that were called; after a restart they are called only once etcd can be reached",
					"error", err)
				fallthrough
			default:
				tell(l.unsaved) // try again
			}
			failed = err
		}
		timer := time.NewTimer(rememberPause)
		select {
		case <-timer.C:
		case <-l.done:
		}
		timer.Stop()
	}
}

// encode returns the text of the file: the nodes that were called last, as many as fit.
func (l *Lookup) encode() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	size := 0
	for _, name := range l.lastCalled() {
		m := l.called[name].member
		n := rememberedNode{Node: name, Address: m.node.Address, Labels: m.node.Labels, Drained: m.node.Cordon.Drained}
		for _, i := range m.callable(Filter{}) {
			n.Plugins = append(n.Plugins, rememberedPlugin{i.Type, i.Name, i.Roles})
		}
		n.Plugins = n.Plugins[:min(len(n.Plugins), maxRememberedPlugins)]
		line, err := json.Marshal(n)
		if size += len(line) + 3; err == nil && size < maxRememberedSize {
			lines = append(lines, string(line))
		}
	}
	slices.Sort(lines) // so that the order of the calls makes no difference
	return "[" + strings.Join(lines, ",\n") + "]\n"
}
