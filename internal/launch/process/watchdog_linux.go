package process

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/plugin"
)

// guard is the host's side of the watchdog. It sends the watchdog records of the processes, and starts a new watchdog if it ends.
type guard struct {
	logger *slog.Logger
	cgroup string // may be empty
	ended  chan struct{}
	stop   context.CancelFunc
	last   atomic.Uint64 // the last ID of a process

	mu      sync.Mutex        // guards the fields below
	records map[uint64]record // of each process that has not ended
	pipe    *os.File          // to the watchdog, which acts when it is closed; nil while there is no watchdog
	exit    exit
	closed  bool
}

// hostID is the ID of the host in records.
const hostID = 0

func newGuard(logger *slog.Logger, cgroup string) (*guard, error) {
	ctx, cancel := context.WithCancel(context.Background())
	g := &guard{logger: logger, cgroup: cgroup, ended: make(chan struct{}), stop: cancel, records: map[uint64]record{}}
	if err := g.launch(); err != nil {
		cancel()
		return nil, err
	}
	go g.run(ctx)
	return g, nil
}

func (g *guard) launch() error {
	p, err := newPipe(1)
	if err != nil {
		return err
	}
	defer p.closeRead()
	exit, err := startHelper(roleWatchdog, p.read)
	if err != nil {
		p.closeWrite()
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pipe, g.exit = p.write, exit
	if g.closed {
		p.closeWrite()
		return nil
	}
	if g.cgroup != "" {
		g.send(record{recordCgroup, g.cgroup})
	}
	for _, r := range g.records {
		g.send(r)
	}
	return nil
}

func (g *guard) run(ctx context.Context) {
	defer close(g.ended)
	pauses := backoff.Backoff{Min: 10 * time.Millisecond, Max: 10 * time.Second}
	for failures := 1; ; {
		started := time.Now()
		g.mu.Lock()
		exit := g.exit
		g.mu.Unlock()
		exit.await()
		state, err := exit.wait()
		_ = exit.pidfd.Close()
		g.mu.Lock()
		closed := g.closed
		_ = g.pipe.Close()
		g.pipe = nil
		g.mu.Unlock()
		if closed {
			return
		}
		g.logger.Warn("the watchdog of the processes has ended and is being restarted", "state", state, "error", err)
		if time.Since(started) > pauses.Max {
			failures = 1
		}
		for launched := false; !launched; failures++ {
			if !backoff.Pause(ctx, pauses.After(failures)) {
				return
			}
			err := g.launch()
			if launched = err == nil; !launched {
				g.logger.Error("the watchdog of the processes does not start; if the host is killed, they outlive it", "error", err)
			}
		}
	}
}

// start sends the record of a process. It is called again if more sockets are known.
func (g *guard) start(id uint64, remove []string, sockets map[string]plugin.SocketID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := record{recordStart, strconv.FormatUint(id, 10)}
	for _, path := range remove {
		r = append(r, path, sockets[path].String())
	}
	g.records[id] = r
	g.send(r)
}

func (g *guard) end(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.records[id]; !ok {
		return
	}
	delete(g.records, id)
	g.send(record{recordEnd, strconv.FormatUint(id, 10)})
}

// send writes a record to the watchdog, which reads it even if this process ends. A watchdog that does not read, because it was stopped, is
// killed and replaced. The caller holds the lock.
func (g *guard) send(r record) {
	if g.pipe == nil {
		return // launch sends all records to the next watchdog
	}
	const patience = time.Second
	_ = g.pipe.SetWriteDeadline(time.Now().Add(patience))
	if _, err := g.pipe.Write(r.encode()); err != nil {
		g.exit.signal(unix.SIGKILL)
	}
}

// close ends the watchdog after all processes have ended. It does not remove the files of the host.
func (g *guard) close() {
	g.end(hostID)
	g.mu.Lock()
	g.closed = true
	if g.pipe != nil {
		_ = g.pipe.Close()
	}
	exit := g.exit
	g.mu.Unlock()
	g.stop()
	const patience = 2 * time.Second
	defer time.AfterFunc(patience, func() { exit.signal(unix.SIGKILL) }).Stop()
	<-g.ended
}

// A record is a message from a host to its watchdog: words that are not empty, each terminated by a NUL byte, and an empty word.
//
//	cgroup DIR              the processes that have a cgroup are in this cgroup or below it
//	start ID [FILE SOCKET]… the files to remove after a process, each with the identity of its socket
//	end ID                  the process and its descendants have ended
type record []string

const (
	recordCgroup = "cgroup"
	recordStart  = "start"
	recordEnd    = "end"
)

func (r record) encode() []byte { return []byte(strings.Join(r, "\x00") + "\x00\x00") }

// guardedProcesses has the cgroup that a watchdog kills, and the files that it removes, when its host has ended. Processes without a cgroup
// are killed by their reapers.
type guardedProcesses struct {
	cgroup  string
	remove  map[string][]string        // the files of each process
	sockets map[string]plugin.SocketID // by file
}

func newGuardedProcesses() guardedProcesses {
	return guardedProcesses{remove: map[string][]string{}, sockets: map[string]plugin.SocketID{}}
}

// listen reads records until the host ends. An incomplete last record is ignored.
func (w *guardedProcesses) listen(r io.Reader) {
	var words record
	for in := bufio.NewReader(r); ; {
		word, err := in.ReadString(0)
		if err != nil {
			return
		}
		if word != "\x00" {
			words = append(words, word[:len(word)-1])
			continue
		}
		if len(words) > 1 {
			w.apply(words)
		}
		words = nil
	}
}

func (w *guardedProcesses) apply(r record) {
	switch r[0] {
	case recordCgroup:
		w.cgroup = r[1]
	case recordStart:
		w.remove[r[1]] = nil
		for file := range slices.Chunk(r[2:], 2) {
			w.remove[r[1]] = append(w.remove[r[1]], file[0])
			w.sockets[file[0]], _ = plugin.ParseSocketID(file[len(file)-1])
		}
	case recordEnd:
		for _, file := range w.remove[r[1]] {
			delete(w.sockets, file)
		}
		delete(w.remove, r[1])
	}
}

// endAll kills all processes and removes their files.
func (w *guardedProcesses) endAll() {
	group := cgroup{dir: w.cgroup}
	if w.cgroup != "" {
		_ = group.kill()
	}
	const patience = 10 * time.Second // for processes that hang in the kernel; others end immediately
	var remains []string
	for _, files := range w.remove {
		_ = removeAll(files, w.sockets, 0)
		remains = append(remains, files...)
	}
	if w.cgroup != "" {
		_ = group.clear(patience)
	}
	_ = removeAll(remains, w.sockets, patience)
}
