package cache

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// DesiredStateOfWorld is the set of existing plugin sockets, by path. Its methods are safe for concurrent use and do not block.
type DesiredStateOfWorld interface {
	// AddOrUpdatePlugin adds the socket at the given path. If the path is known, the socket counts as a new appearance and gets a new
	// timestamp. An empty path is an error.
	AddOrUpdatePlugin(socketPath string) error
	// RemovePlugin removes the socket at the given path. It is a no-op if there is none.
	RemovePlugin(socketPath string)
	// GetPluginsToRegister returns all sockets, sorted by path.
	GetPluginsToRegister() []PluginInfo
	// PluginExists reports whether there is a socket at the given path.
	PluginExists(socketPath string) bool
}

var errSocketPathEmpty = errors.New("socket path is empty")

// NewDesiredStateOfWorld returns an empty desired state of the world.
func NewDesiredStateOfWorld() DesiredStateOfWorld { return NewDesired() }

// NewDesired returns an empty desired state of the world.
func NewDesired() *Desired {
	return &Desired{sockets: map[string]*PluginInfo{}, subscribers: map[*Changes]struct{}{}}
}

// Desired is a [DesiredStateOfWorld] that also distinguishes sockets by their identity and notifies subscribers of changes. It is safe for
// concurrent use.
type Desired struct {
	// Clock returns the current time; nil means time.Now. Simulations set it before any other use.
	Clock func() time.Time

	mu          sync.RWMutex
	sockets     map[string]*PluginInfo // immutable values
	appearances uint64
	lastStamp   time.Time
	subscribers map[*Changes]struct{}
}

// AddOrUpdatePlugin implements [DesiredStateOfWorld].
func (d *Desired) AddOrUpdatePlugin(socketPath string) error {
	if socketPath == "" {
		return errSocketPathEmpty
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.appear(PluginInfo{SocketPath: socketPath})
	return nil
}

// SetSocket records that a socket exists, with its SocketPath, Socket and FoundInDeprecatedDir. It is a new appearance, unless the socket
// with this identity is already known at the path. An empty path is an error.
func (d *Desired) SetSocket(socket PluginInfo) error {
	if socket.SocketPath == "" {
		return errSocketPathEmpty
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.sockets[socket.SocketPath]; ok && known.Socket == socket.Socket {
		return nil
	}
	d.appear(socket)
	return nil
}

// appear adds a new appearance. d.mu is held.
func (d *Desired) appear(socket PluginInfo) {
	now := d.now()
	if !now.After(d.lastStamp) {
		now = d.lastStamp.Add(1)
	}
	d.lastStamp = now
	d.appearances++
	socket.Timestamp, socket.Appearance = now, d.appearances
	d.sockets[socket.SocketPath] = &socket
	d.notify(socket.SocketPath)
}

func (d *Desired) now() time.Time {
	if d.Clock != nil {
		return d.Clock()
	}
	return time.Now()
}

// MoveSocket records that a socket was renamed. It keeps its appearance. MoveSocket is a no-op if there is no socket at from. An empty path
// is an error.
func (d *Desired) MoveSocket(from string, to PluginInfo) error {
	if from == "" || to.SocketPath == "" {
		return errSocketPathEmpty
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	info, ok := d.sockets[from]
	if !ok || from == to.SocketPath {
		return nil
	}
	delete(d.sockets, from)
	moved := *info
	moved.SocketPath, moved.FoundInDeprecatedDir = to.SocketPath, to.FoundInDeprecatedDir
	d.sockets[to.SocketPath] = &moved
	d.notify(from, to.SocketPath)
	return nil
}

// RemovePlugin implements [DesiredStateOfWorld].
func (d *Desired) RemovePlugin(socketPath string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.sockets[socketPath]; ok {
		delete(d.sockets, socketPath)
		d.notify(socketPath)
	}
}

// GetPluginsToRegister implements [DesiredStateOfWorld].
func (d *Desired) GetPluginsToRegister() []PluginInfo {
	d.mu.RLock()
	defer d.mu.RUnlock()
	infos := make([]PluginInfo, 0, len(d.sockets))
	for _, info := range d.sockets {
		infos = append(infos, *info)
	}
	return sortedByPath(infos)
}

// PluginExists implements [DesiredStateOfWorld].
func (d *Desired) PluginExists(socketPath string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, ok := d.sockets[socketPath]
	return ok
}

func sortedByPath(infos []PluginInfo) []PluginInfo {
	slices.SortFunc(infos, func(a, b PluginInfo) int { return cmp.Compare(a.SocketPath, b.SocketPath) })
	return infos
}

// Changes is a subscription to a [Desired]. It stores which paths changed, but not how or how often, so a slow reader needs no more memory.
type Changes struct {
	of     *Desired
	signal chan struct{}
	dirty  map[string]struct{}
	order  []string
}

// Change is the current state of one path that changed.
type Change struct {
	Path string
	// Info describes the socket at the path; nil if there is none. It must not be modified.
	Info *PluginInfo
}

// Changes returns a subscription. It starts with all existing sockets as changes.
func (d *Desired) Changes() *Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &Changes{of: d, signal: make(chan struct{}, 1), dirty: map[string]struct{}{}}
	d.subscribers[c] = struct{}{}
	byAppearance := slices.SortedFunc(maps.Values(d.sockets), func(a, b *PluginInfo) int {
		return cmp.Compare(a.Appearance, b.Appearance)
	})
	for _, info := range byAppearance {
		c.add(info.SocketPath)
	}
	return c
}

// notify marks the paths as changed for every subscriber. d.mu is held.
func (d *Desired) notify(paths ...string) {
	for c := range d.subscribers {
		for _, path := range paths {
			c.add(path)
		}
	}
}

func (c *Changes) add(path string) {
	if _, ok := c.dirty[path]; !ok {
		c.dirty[path] = struct{}{}
		c.order = append(c.order, path)
	}
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// C returns a channel that receives a value when there are changes to take. It is never closed.
func (c *Changes) C() <-chan struct{} { return c.signal }

// Take returns the current state of each path that changed since the last call, in the order of the first changes. It is a consistent view:
// if a socket moved, both of its paths are in the same result.
func (c *Changes) Take() []Change {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	taken := make([]Change, len(c.order))
	for i, path := range c.order {
		taken[i] = Change{path, c.of.sockets[path]}
	}
	c.order = nil
	clear(c.dirty)
	return taken
}

// Close ends the subscription. C receives no values afterwards.
func (c *Changes) Close() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	delete(c.of.subscribers, c)
}
