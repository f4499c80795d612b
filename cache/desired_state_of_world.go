package cache

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// DesiredStateOfWorld is the set of plugin sockets that exist, by socket path. All methods are safe for concurrent use and none
// blocks.
type DesiredStateOfWorld interface {
	// AddOrUpdatePlugin adds the socket at the given path. If it is there already, it counts as a new appearance and gets
	// a new timestamp. An empty path is an error.
	AddOrUpdatePlugin(socketPath string) error
	// RemovePlugin removes the socket at the given path. It is a no-op if there is none.
	RemovePlugin(socketPath string)
	// GetPluginsToRegister returns all sockets, sorted by path.
	GetPluginsToRegister() []PluginInfo
	// PluginExists says whether there is a socket at the given path.
	PluginExists(socketPath string) bool
}

var errSocketPathEmpty = errors.New("socket path is empty")

// NewDesiredStateOfWorld returns an empty desired state of the world.
func NewDesiredStateOfWorld() DesiredStateOfWorld { return NewDesired() }

// NewDesired returns an empty desired state of the world with what is more than the kubelet's.
func NewDesired() *Desired {
	return &Desired{sockets: map[string]*PluginInfo{}, subscribers: map[*Changes]struct{}{}}
}

// Desired is the [DesiredStateOfWorld] of this package: it knows sockets by their identity, and tells of changes. It is safe for concurrent
// use.
type Desired struct {
	// Clock tells when a socket appears; nil is the time of this machine. It is for simulations, and is set before anything else is done.
	Clock func() time.Time

	mu          sync.RWMutex
	sockets     map[string]*PluginInfo // none is changed
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

// SetSocket states that a socket exists, by its SocketPath, Socket and FoundInDeprecatedDir. It is a new appearance if its path holds none
// or one of another identity, and a no-op otherwise. An empty path is an error.
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

// MoveSocket states that the socket at one path is now at another: the same appearance in a new place. It is a no-op if there is none at
// from. An empty path is an error.
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

// Changes is a subscription to a [Desired]. It remembers which paths changed, not how often or how, so its memory is
// bounded by the number of paths however slowly it is read.
type Changes struct {
	of     *Desired
	signal chan struct{}
	dirty  map[string]struct{}
	order  []string
}

// Change is the present state of one path that changed.
type Change struct {
	Path string
	// Info describes the socket that is at the path now; nil if there is none. It must not be changed.
	Info *PluginInfo
}

// Changes returns a subscription to the changes from now on, beginning with all sockets that exist.
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

// C delivers a value when there is something to take. It is never closed.
func (c *Changes) C() <-chan struct{} { return c.signal }

// Take returns the present state of every path that changed since the last call, in the order of each path's first change. It is one
// consistent view: a socket that moved is seen as gone from one path and present at the other in the same result.
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

// Close ends the subscription. C stays silent from then on.
func (c *Changes) Close() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	delete(c.of.subscribers, c)
}
