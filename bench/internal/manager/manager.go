package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"strings"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// Contestant finds the plugins in a directory and registers them until its context ends.
type Contestant func(ctx context.Context, dir string, j *Journal) error

// ProfileVariable is the environment variable that names a directory for profiles of each contestant, of processor time and allocations;
// unset for none.
const ProfileVariable = "PATCHBAY_BENCH_PROFILE"

// Play serves the contestant that the last argument names, on the directory that the first one does. See [Serve].
func Play(contestants map[string]Contestant) error {
	name := os.Args[len(os.Args)-1]
	run, ok := contestants[name]
	if !ok {
		return fmt.Errorf("there is no contestant %q", name)
	}
	if err := Serve(run, os.Args[1]); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Serve runs a contestant on a directory, and serves a [Manager], until standard input ends.
func Serve(run Contestant, dir string) error {
	stop, err := profile(os.Getenv(ProfileVariable))
	if err != nil {
		return err
	}
	return errors.Join(serve(run, dir), stop())
}

// profile begins a profile of this process, which is named after its role.
func profile(dir string) (stop func() error, err error) {
	if dir == "" {
		return func() error { return nil }, nil
	}
	f, err := os.CreateTemp(dir, os.Args[len(os.Args)-1]+"-*.cpu")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(strings.TrimSuffix(f.Name(), ".cpu") + ".allocs")
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return errors.Join(f.Close(), pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close())
	}, nil
}

func serve(run Contestant, dir string) error {
	j, err := newJournal()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() {
		err := run(ctx, dir, j)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		ran <- err
	}()
	err = proc.Serve(&Manager{j})
	cancel()
	return errors.Join(err, <-ran)
}

// Manager answers the benchmark's questions about a contestant. Its methods are those of net/rpc.
type Manager struct{ journal *Journal }

// Ready returns when plugins that appear are found.
func (m *Manager) Ready(_ proc.None, _ *proc.None) error {
	<-m.journal.ready
	return nil
}

// Began says when the contestant was started, in nanoseconds of [proc.Now].
func (m *Manager) Began(_ proc.None, at *int64) error {
	*at = m.journal.began
	return nil
}

// Registration is the Nth one of the plugins of a name, counted from 1.
type Registration struct {
	Name string
	Nth  int
}

// Registered waits until a registration is made and settled, and says when it was made, in nanoseconds of [proc.Now].
func (m *Manager) Registered(r Registration, at *int64) error {
	m.wait(func() bool {
		p := m.journal.plugins[r.Name]
		if p == nil || p.registrations < r.Nth || p.settlements < r.Nth {
			return false
		}
		*at = p.registered
		return true
	})
	return nil
}

// Gone waits until a plugin that was registered is not any more, says when its consumer was told, and forgets it.
func (m *Manager) Gone(name string, at *int64) error {
	m.wait(func() bool {
		p := m.journal.plugins[name]
		if p == nil || p.deregistered <= p.registered || len(p.settled) > 0 {
			return false
		}
		*at = p.deregistered
		delete(m.journal.plugins, name)
		return true
	})
	return nil
}

// Settled waits until n plugins are registered and settled.
func (m *Manager) Settled(n int, _ *proc.None) error {
	m.wait(func() bool {
		settled := 0
		for _, p := range m.journal.plugins {
			if len(p.settled) > 0 {
				settled++
			}
		}
		return settled == n
	})
	return nil
}

// UsageBefore says what the process had used when the contestant was started.
func (m *Manager) UsageBefore(_ proc.None, usage *proc.Usage) error {
	*usage = m.journal.before
	return nil
}

// Usage says what the process has used so far.
func (m *Manager) Usage(_ proc.None, usage *proc.Usage) (err error) {
	*usage, err = proc.ReadUsage()
	return err
}

// Costs says what the process has spent so far.
func (m *Manager) Costs(_ proc.None, costs *proc.Costs) (err error) {
	*costs, err = proc.ReadCosts()
	return err
}

// Footprint says what the process holds.
func (m *Manager) Footprint(_ proc.None, f *proc.Footprint) (err error) {
	*f, err = proc.ReadFootprint()
	return err
}

func (m *Manager) wait(until func() bool) {
	m.journal.mu.Lock()
	defer m.journal.mu.Unlock()
	for !until() {
		m.journal.changed.Wait()
	}
}
