package fleet

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/reconciler"
)

const (
	// maxRemembered and maxRememberedSize bound the nodes in the file and its size in bytes, and maxRememberedPlugins those of one node.
	maxRemembered, maxRememberedPlugins, maxRememberedSize = 256, 512, 1 << 20
	// rememberPause is the least time between two writes of the file.
	rememberPause = time.Second
)

// remembered is a node that was called, as etcd had it last. A lookup uses it until it has read the node.
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

// save writes the file after each change until the lookup is closed.
func (l *Lookup) save() {
	before := ""
	for open := true; open; {
		select {
		case <-l.unsaved:
		case <-l.done:
			open = false
		}
		text := l.encode()
		if text == before {
			continue
		}
		if err := regular.Replace(l.config.NodeFile, text); err != nil {
			l.log.Warn("fleet: cannot remember the nodes that were called; after a restart they are called only once etcd can be reached",
				"error", err)
		}
		before = text
		select {
		case <-time.After(rememberPause):
		case <-l.done:
		}
	}
}

// encode returns the text of the file: the nodes that were called last, as many as fit.
func (l *Lookup) encode() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := []byte("[")
	for _, name := range l.lastCalled() {
		m := l.called[name].member
		n := rememberedNode{Node: name, Address: m.node.Address, Labels: m.node.Labels, Drained: m.node.Cordon.Drained}
		for _, i := range m.callable(Filter{}) {
			n.Plugins = append(n.Plugins, rememberedPlugin{i.Type, i.Name, i.Roles})
		}
		n.Plugins = n.Plugins[:min(len(n.Plugins), maxRememberedPlugins)]
		line, err := json.Marshal(n)
		if err != nil || len(text)+len(line) > maxRememberedSize-2 {
			continue
		}
		if len(text) > 1 {
			text = append(text, ",\n"...)
		}
		text = append(text, line...)
	}
	return string(append(text, "]\n"...))
}
