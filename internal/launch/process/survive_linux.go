package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// kept is the host's side of a surviving process, which it controls through the keeper. Only the keeper's socket in [Group].StateDir
// survives a host, so no stored process ID can be that of another process.
type kept struct {
	process *Process
	socket  string // of the keeper
	id      procID
	leaf    *cgroup // nil if it has none
	exit    exit    // zero if the process had ended before it was adopted

	mu       sync.Mutex // guards the fields below
	wire     *wire
	released bool
}

const socketSuffix = ".sock"

func startKept(g *Group, p *Process) error {
	dir := g.StateDir
	if dir == "" {
		return errors.New("a process that survives needs a directory for its state")
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		dir, err = realDir(dir)
	}
	if err != nil {
		return fmt.Errorf("the directory for the state of processes that survive: %w", err)
	}
	spec := p.spec
	if spec.Dir, err = filepath.Abs(spec.Dir); err != nil { // the keeper has another working directory
		return err
	}
	input, err := spec.input()
	if err != nil {
		return err
	}
	files := spec.ExtraFiles
	spec.ExtraFiles = nil

	socket := filepath.Join(dir, rand.Text()[:10]+socketSuffix)
	w, about, err := startWithOrder(launchKeeper, toKeeper{Start: &spec, Input: input, Cgroup: g.Cgroup, Socket: socket}, files, 2)
	if err != nil {
		return err
	}
	if err = newKept(p, socket, w, about); err != nil {
		w.close()
	}
	return err
}

// realDir returns the absolute path of a directory without symbolic links.
func realDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// launchKeeper starts a keeper that is not a child of this process, so that this process need not reap it.
func launchKeeper(stdin *os.File) error {
	// gofail: var processKeeper string
	// return errors.New(processKeeper)
	exit, err := startHelper(roleLauncher, stdin)
	if err != nil {
		return err
	}
	exit.await()
	defer exit.pidfd.Close()
	state, err := exit.wait()
	if err == nil && !state.Success() {
		err = fmt.Errorf("start the keeper of a process that survives: %s", state)
	}
	return err
}

// newKept takes over the connection to a keeper. It fails if the process cannot be watched.
func newKept(p *Process, socket string, w *wire, about fromKeeper) error {
	k := &kept{process: p, socket: socket, id: procID{about.PID, about.Start}, wire: w}
	pidfd, err := k.id.open()
	if err != nil && !errors.Is(err, unix.ESRCH) { // if the process has ended, the keeper's next message has its status
		return fmt.Errorf("watch process %d: %w", about.PID, err)
	}
	if err == nil {
		k.exit = newExit(about.PID, pidfd)
	}
	if about.Dir != "" {
		k.leaf = &cgroup{dir: about.Dir, path: about.Cgroup}
	}
	p.pid, p.body = about.PID, k
	p.stdout, p.stderr, w.files = pollable(w.files[0]), pollable(w.files[1]), nil
	return nil
}

func pollable(f *os.File) *os.File {
	defer f.Close()
	fd, _ := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	setNonblock(fd)
	return os.NewFile(uintptr(fd), "pipe")
}

// adopt connects to all keepers, except those of processes in this group.
func (pl *platform) adopt(ctx context.Context, g *Group) ([]*Process, error) {
	if g.StateDir == "" {
		return nil, nil
	}
	dir, err := realDir(g.StateDir)
	if err != nil {
		return nil, ignore(err, fs.ErrNotExist)
	}
	sockets, err := filepath.Glob(filepath.Join(dir, "*"+socketSuffix))
	if err != nil {
		return nil, err
	}
	sockets = slices.DeleteFunc(sockets, g.keeps)
	found, errs := make([]*Process, len(sockets)), make([]error, len(sockets))
	var asked sync.WaitGroup
	for i, socket := range sockets {
		asked.Go(func() {
			if found[i], errs[i] = adoptOne(ctx, socket); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", socket, errs[i])
			}
		})
	}
	asked.Wait()
	return slices.DeleteFunc(found, func(p *Process) bool { return p == nil }), errors.Join(errs...)
}

func (g *Group) keeps(socket string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.procs {
		if k, survives := p.body.(*kept); survives && k.socket == socket {
			return true
		}
	}
	return false
}

// adoptOne returns nil if the process has ended.
func adoptOne(ctx context.Context, socket string) (p *Process, err error) {
	// gofail: var processAdopt string
	// return nil, errors.New(processAdopt)
	const patience = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := sock.Dial(ctx, socket)
	if sock.IsRefused(err) {
		return nil, ignore(os.Remove(socket), fs.ErrNotExist) // the keeper has ended
	}
	if err != nil {
		return nil, ignore(err, fs.ErrNotExist)
	}
	w := newWire(conn)
	defer func() {
		if p == nil {
			w.close()
		}
	}()
	keeper, err := sock.PeerOf(conn)
	if err != nil {
		return nil, err
	}
	if int(keeper.UID) != os.Geteuid() {
		return nil, fmt.Errorf("user %d listens there, and this process runs as another user", keeper.UID)
	}
	interrupted := context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Unix(1, 0)) })
	about, err := receiveAnswer(w, 2)
	if !interrupted() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if about.Busy {
		return nil, errors.New("another host holds it")
	}
	adopted := &Process{spec: Spec{Name: about.Name, Data: about.Data, Survive: true}, done: make(chan struct{})}
	if err := newKept(adopted, socket, w, about); err != nil {
		return nil, err
	}
	return adopted, nil
}

func (k *kept) end(s step) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s == release {
		k.released = true
		_ = k.wire.conn.Close()
		return
	}
	_ = k.wire.send(toKeeper{Step: s})
	if s == kill { // also if the keeper hangs
		if k.leaf != nil {
			_ = k.leaf.kill()
		}
		k.id.kill()
	}
}

func (k *kept) owns(pid int) bool {
	s, ok := readStat(k.id.pid)
	return ok && s.start == k.id.start && belongs(pid, k.id.pid, k.id.pid, k.leaf)
}

// errKeeper is the error of a process that was killed because its keeper ended.
var errKeeper = errors.New("the process was killed because its keeper has ended")

func (k *kept) wait() error {
	var last fromKeeper
	err := k.wire.decoder.Decode(&last)
	k.mu.Lock()
	released := k.released
	_ = k.wire.conn.Close()
	k.mu.Unlock()
	defer k.exit.pidfd.Close() // nil if the process had ended before
	switch {
	case released:
		return errReleased
	case err != nil || !last.Ended:
		if k.exit.pidfd != nil && k.id.kill() { // the keeper's watchdog kills the descendants
			k.exit.await()
		}
		return errKeeper
	case last.Code != 0 || last.Signal != 0:
		return &exitError{Code: last.Code, Signal: last.Signal}
	}
	return nil
}
