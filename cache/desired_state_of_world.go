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

	// SetSocket states that the given socket exists. It is a new appearance if its path holds none or one of another
	// identity, and a no-op otherwise. An empty path is an error.
	SetSocket(socket Socket) error
	// MoveSocket states that the socket at one path is now at another: the same appearance in a new place. It is a no-op if
	// there is none at from.
	MoveSocket(from string, to Socket)
	// Changes returns a subscription to the changes from now on, beginning with all sockets that exist.
	Changes() *Changes
}

// Socket is a socket as found in a plugin directory.
type Socket struct {
	Path string
	ID   SocketID
	// Deprecated says that it was found in the deprecated plugin directory.
	Deprecated bool
}

var errSocketPathEmpty = errors.New("socket path is empty")

// NewDesiredStateOfWorld returns an empty desired state of the world.
func NewDesiredStateOfWorld() DesiredStateOfWorld {
	return &desiredStateOfWorld{sockets: map[string]PluginInfo{}, subscribers: map[*Changes]struct{}{}}
}

type desiredStateOfWorld struct {
	mu          sync.RWMutex
	sockets     map[string]PluginInfo
	appearances uint64
	lastStamp   time.Time
	subscribers map[*Changes]struct{}
}

func (dsw *desiredStateOfWorld) AddOrUpdatePlugin(socketPath string) error {
	if socketPath == "" {
		return errSocketPathEmpty
	}
	dsw.mu.Lock()
	defer dsw.mu.Unlock()
	dsw.appear(Socket{Path: socketPath})
	return nil
}

func (dsw *desiredStateOfWorld) SetSocket(socket Socket) error {
	if socket.Path == "" {
		return errSocketPathEmpty
	}
	dsw.mu.Lock()
	defer dsw.mu.Unlock()
	if known, ok := dsw.sockets[socket.Path]; ok && known.Socket == socket.ID {
		return nil
	}
	dsw.appear(socket)
	return nil
}

// appear enters a new appearance. dsw.mu is held.
func (dsw *desiredStateOfWorld) appear(socket Socket) {
	now := time.Now()
	if !now.After(dsw.lastStamp) {
		now = dsw.lastStamp.Add(1)
	}
	dsw.lastStamp = now
	dsw.appearances++
	dsw.sockets[socket.Path] = PluginInfo{
		SocketPath:           socket.Path,
		Timestamp:            now,
		Appearance:           dsw.appearances,
		Socket:               socket.ID,
		FoundInDeprecatedDir: socket.Deprecated,
	}
	dsw.notify(socket.Path)
}

func (dsw *desiredStateOfWorld) MoveSocket(from string, to Socket) {
	dsw.mu.Lock()
	defer dsw.mu.Unlock()
	info, ok := dsw.sockets[from]
	if !ok || from == to.Path {
		return
	}
	delete(dsw.sockets, from)
	info.SocketPath = to.Path
	info.FoundInDeprecatedDir = to.Deprecated
	dsw.sockets[to.Path] = info
	dsw.notify(from, to.Path)
}

func (dsw *desiredStateOfWorld) RemovePlugin(socketPath string) {
	dsw.mu.Lock()
	defer dsw.mu.Unlock()
	if _, ok := dsw.sockets[socketPath]; ok {
		delete(dsw.sockets, socketPath)
		dsw.notify(socketPath)
	}
}

func (dsw *desiredStateOfWorld) GetPluginsToRegister() []PluginInfo {
	dsw.mu.RLock()
	defer dsw.mu.RUnlock()
	return sortedByPath(dsw.sockets)
}

func (dsw *desiredStateOfWorld) PluginExists(socketPath string) bool {
	dsw.mu.RLock()
	defer dsw.mu.RUnlock()
	_, ok := dsw.sockets[socketPath]
	return ok
}

func sortedByPath(infos map[string]PluginInfo) []PluginInfo {
	sorted := make([]PluginInfo, 0, len(infos))
	for _, info := range infos {
		sorted = append(sorted, info)
	}
	slices.SortFunc(sorted, func(a, b PluginInfo) int { return cmp.Compare(a.SocketPath, b.SocketPath) })
	return sorted
}

// Changes is a subscription to a [DesiredStateOfWorld]. It remembers which paths changed, not how often or how, so its memory is
// bounded by the number of paths however slowly it is read.
type Changes struct {
	dsw    *desiredStateOfWorld
	signal chan struct{}
	dirty  map[string]struct{}
	order  []string
}

// Change is the present state of one path that changed.
type Change struct {
	Path string
	// Present says whether a socket is at the path now; Info describes it if so.
	Present bool
	Info    PluginInfo
}

// Changes implements [DesiredStateOfWorld].
func (dsw *desiredStateOfWorld) Changes() *Changes {
	dsw.mu.Lock()
	defer dsw.mu.Unlock()
	c := &Changes{dsw: dsw, signal: make(chan struct{}, 1), dirty: map[string]struct{}{}}
	dsw.subscribers[c] = struct{}{}
	byAppearance := slices.SortedFunc(maps.Values(dsw.sockets), func(a, b PluginInfo) int {
		return cmp.Compare(a.Appearance, b.Appearance)
	})
	for _, info := range byAppearance {
		c.add(info.SocketPath)
	}
	return c
}

// notify marks the paths as changed for every subscriber. dsw.mu is held.
func (dsw *desiredStateOfWorld) notify(paths ...string) {
	for c := range dsw.subscribers {
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
	c.dsw.mu.Lock()
	defer c.dsw.mu.Unlock()
	taken := make([]Change, len(c.order))
	for i, path := range c.order {
		info, ok := c.dsw.sockets[path]
		taken[i] = Change{Path: path, Present: ok, Info: info}
	}
	c.order = nil
	clear(c.dirty)
	return taken
}

// Close ends the subscription. C stays silent from then on.
func (c *Changes) Close() {
	c.dsw.mu.Lock()
	defer c.dsw.mu.Unlock()
	delete(c.dsw.subscribers, c)
}
