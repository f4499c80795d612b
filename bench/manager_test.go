package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// contestants are the programs that are compared, by role: each finds the plugins in a directory and registers them until its context
// ends. The first one is the floor.
var contestants = []struct {
	name string
	run  func(ctx context.Context, dir string, m *Manager) error
}{
	{"floor", runFloor},
	{"watcher", runWatcher},
	{"runtime", runRuntime},
}

// Manager is the process of one contestant. It serves calls of net/rpc.
type Manager struct {
	ready chan struct{}

	mu         sync.Mutex
	changed    *sync.Cond
	registered map[string]int64 // when, by name
	settled    map[string]bool  // by name
}

// runManager runs a contestant on a directory until standard input ends.
func runManager(role, dir string) error {
	m := &Manager{ready: make(chan struct{}), registered: map[string]int64{}, settled: map[string]bool{}}
	m.changed = sync.NewCond(&m.mu)
	for _, c := range contestants {
		if c.name != role {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		ran := make(chan error, 1)
		go func() {
			err := c.run(ctx, dir, m)
			if err != nil && !errors.Is(err, context.Canceled) {
				fmt.Fprintln(os.Stderr, role+":", err)
			}
			ran <- err
		}()
		err := serve(m)
		cancel()
		if ranErr := <-ran; !errors.Is(ranErr, context.Canceled) {
			err = errors.Join(err, ranErr)
		}
		return err
	}
	return fmt.Errorf("there is no contestant %q", role)
}

// setRegistered is called by a contestant at the moment at which it hands a plugin to its consumer.
func (m *Manager) setRegistered(name string) error {
	at, err := now()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registered[name] = at
	m.changed.Broadcast()
	return nil
}

// setSettled is called by a contestant when it has nothing to do any more with a plugin that it registered.
func (m *Manager) setSettled(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled[name] = true
	m.changed.Broadcast()
}

// setGone is called by a contestant when it has nothing to do any more with a plugin that went.
func (m *Manager) setGone(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.registered, name)
	delete(m.settled, name)
	m.changed.Broadcast()
}

// Ready returns when plugins that appear are found.
func (m *Manager) Ready(_ None, _ *None) error {
	<-m.ready
	return nil
}

// Registered waits until a plugin is registered and settled, and says when it was registered, in nanoseconds of [now].
func (m *Manager) Registered(name string, at *int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.settled[name] {
		m.changed.Wait()
	}
	*at = m.registered[name]
	return nil
}

// Gone waits until a plugin that was registered is not any more.
func (m *Manager) Gone(name string, _ *None) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.settled[name] {
		m.changed.Wait()
	}
	return nil
}

// Settled waits until n plugins are registered and settled.
func (m *Manager) Settled(n int, _ *None) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.settled) != n {
		m.changed.Wait()
	}
	return nil
}

// Usage is what a process has used since it was started.
type Usage struct {
	CPU        time.Duration
	PeakMemory int64 // bytes
}

// Usage says what the process has used so far.
func (m *Manager) Usage(_ None, usage *Usage) error {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return err
	}
	peak, err := peakMemory()
	if err != nil {
		return err
	}
	*usage = Usage{CPU: time.Duration(r.Utime.Nano() + r.Stime.Nano()), PeakMemory: peak}
	return nil
}

// peakMemory is the largest resident size of this process. That of getrusage would include the time before exec.
func peakMemory() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no line VmHWM")
}
