package bench

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// memory is the floor of what is done in memory: plugins in a map behind an atomic pointer, which is copied for each change; bare channel
// sends to subscribers; a channel that is closed for those that wait. One caller makes changes, and subscribers are never behind.
type memory struct {
	registry.Incomplete

	plugins     atomic.Pointer[map[memoryKey]string]
	mu          sync.Mutex
	subscribers []chan string
	waiting     map[int]chan struct{}
}

type memoryKey struct{ ptype, name string }

func newMemory() *memory {
	m := &memory{waiting: map[int]chan struct{}{}}
	m.plugins.Store(&map[memoryKey]string{})
	return m
}

// Register implements [registry.Subject].
func (m *memory) Register(i int) error {
	m.change(i, func(plugins map[memoryKey]string) {
		plugins[memoryKey{registry.Type, registry.Name(i)}] = registry.SocketPath(i)
	})
	return nil
}

// Deregister implements [registry.Subject].
func (m *memory) Deregister(i int) error {
	m.change(i, func(plugins map[memoryKey]string) { delete(plugins, memoryKey{registry.Type, registry.Name(i)}) })
	return nil
}

func (m *memory) change(i int, change func(map[memoryKey]string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	plugins := maps.Clone(*m.plugins.Load())
	change(plugins)
	m.plugins.Store(&plugins)
	name := registry.Name(i)
	for _, s := range m.subscribers {
		s <- name
	}
	if w := m.waiting[i]; w != nil {
		close(w)
		delete(m.waiting, i)
	}
}

// Dispense implements [registry.Subject].
func (m *memory) Dispense(name string) error {
	if _, ok := (*m.plugins.Load())[memoryKey{registry.Type, name}]; !ok {
		return errors.New("not found")
	}
	return nil
}

// List implements [registry.Subject].
func (m *memory) List() int { return len(slices.Collect(maps.Values(*m.plugins.Load()))) }

// Wait implements [registry.Subject].
func (m *memory) Wait(_ context.Context, i int) error {
	m.mu.Lock()
	w := make(chan struct{})
	m.waiting[i] = w
	m.mu.Unlock()
	<-w
	return nil
}

// Subscribe implements [registry.Subject].
func (m *memory) Subscribe(ctx context.Context, receive func()) {
	events := make(chan string, 16)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers = append(m.subscribers, events)
	go func() {
		for range events {
			receive()
		}
	}()
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.subscribers = slices.DeleteFunc(m.subscribers, func(s chan string) bool { return s == events })
		close(events)
	})
}
