package process

import (
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// guard is the host's side of the watchdog: it tells it what to end when the host has gone, and starts another one if it ends.
type guard struct {
	logger *slog.Logger
	cgroup string // may be empty
	ended  chan struct{}
	stop   chan struct{}

	mu     sync.Mutex // guards what follows
	last   uint64
	told   map[uint64][]record // what was told of each process that has not ended
	pipe   *os.File            // to the watchdog, which takes its end for that of the host; nil while there is none
	proc   *os.Process
	exit   exit
	closed bool
}

// hostID stands for the host itself among the processes that the watchdog is told of.
const hostID = 0

// newGuard starts the watchdog.
func newGuard(logger *slog.Logger, cgroup string) (*guard, error) {
	g := &guard{logger: logger, cgroup: cgroup, ended: make(chan struct{}), stop: make(chan struct{}), told: map[uint64][]record{}}
	if err := g.launch(); err != nil {
		return nil, err
	}
	go g.run()
	return g, nil
}

// launch starts a watchdog and tells it everything.
func (g *guard) launch() error {
	p, err := newPipe(1)
	if err != nil {
		return err
	}
	defer p.closeRead()
	proc, exit, err := startHelper(roleWatchdog, p.read)
	if err != nil {
		p.closeWrite()
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pipe, g.proc, g.exit = p.write, proc, exit
	if g.closed {
		p.closeWrite()
		return nil
	}
	if g.cgroup != "" {
		g.tell(record{recordCgroup, g.cgroup})
	}
	for _, id := range slices.Sorted(maps.Keys(g.told)) {
		for _, r := range g.told[id] {
			g.tell(r)
		}
	}
	return nil
}

// run starts the watchdog again whenever it ends.
func (g *guard) run() {
	defer close(g.ended)
	const shortest, longest = 10 * time.Millisecond, 10 * time.Second
	pause := shortest
	for {
		started := time.Now()
		g.mu.Lock()
		exit, proc := g.exit, g.proc
		g.mu.Unlock()
		exit.await()
		state, err := exit.wait(proc)
		_ = exit.pidfd.Close()

		g.mu.Lock()
		closed := g.closed
		_ = g.pipe.Close()
		g.pipe = nil
		g.mu.Unlock()
		if closed {
			return
		}
		g.logger.Warn("the watchdog of the processes has ended and is started again", "state", state, "error", err)
		if time.Since(started) > longest {
			pause = shortest
		}
		if !g.relaunch(&pause, longest) {
			return
		}
	}
}

// relaunch starts a watchdog after a pause, and tries until there is one. It reports false if none is needed any more.
func (g *guard) relaunch(pause *time.Duration, longest time.Duration) bool {
	for {
		select {
		case <-g.stop:
			return false
		case <-time.After(*pause):
		}
		*pause = min(2**pause, longest)
		err := g.launch()
		if err == nil {
			return true
		}
		g.logger.Error("the watchdog of the processes does not start; they outlive a host that is killed", "error", err)
	}
}

func (g *guard) nextID() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	return g.last
}

// start says that a process is about to start.
func (g *guard) start(id, since uint64, p pipes, remove []string) {
	r := record{recordStart}
	for _, n := range []uint64{id, since, p.in, p.out, p.err} {
		r = append(r, strconv.FormatUint(n, 10))
	}
	g.add(id, append(r, remove...))
}

// pid says which process ID it has.
func (g *guard) pid(id uint64, pid int) {
	g.add(id, record{recordPID, strconv.FormatUint(id, 10), strconv.Itoa(pid)})
}

func (g *guard) add(id uint64, r record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told[id] = append(g.told[id], r)
	g.tell(r)
}

// end says that nothing is left of a process.
func (g *guard) end(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.told[id]; !ok {
		return
	}
	delete(g.told, id)
	g.tell(record{recordEnd, strconv.FormatUint(id, 10)})
}

// tell writes a record to the watchdog. What was written it will read, even if this process ends now. A watchdog that does not read,
// because it was stopped, is replaced. The caller holds the lock.
func (g *guard) tell(r record) {
	if g.pipe == nil {
		return // The next one is told everything.
	}
	const patience = time.Second
	_ = g.pipe.SetWriteDeadline(time.Now().Add(patience))
	if _, err := g.pipe.Write(r.encode()); err != nil {
		_ = g.proc.Kill()
	}
}

// close ends the watchdog. Nothing is left to guard.
func (g *guard) close() {
	g.mu.Lock()
	g.closed = true
	if g.pipe != nil {
		_ = g.pipe.Close()
	}
	proc := g.proc
	g.mu.Unlock()
	close(g.stop)
	const patience = 2 * time.Second
	defer time.AfterFunc(patience, func() { _ = proc.Kill() }).Stop()
	<-g.ended
}
