package sock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// errClosed is returned by the methods of a [Watcher] after its Run ended.
var errClosed = errors.New("no longer watching")

// Watcher calls a function when a peer goes away: its process ends ([Watcher.WatchProcess]), or it closes the connection
// ([Watcher.WatchConn]). It does not poll. A watch needs one descriptor, some hundred bytes and no goroutine: all watches are in one epoll
// instance, which is in the Go runtime's poller.
//
// Create a Watcher with [NewWatcher] and call Run. The methods are safe for concurrent use, also before Run.
//
// The function of a watch is called once, on the goroutine of Run, and must not block. The returned stop ends the watch. It may be called
// at any time and repeatedly, also from the function. After stop, the function is not called, but a call that has started may still be
// running, because stop does not wait for it.
type Watcher struct {
	epoll *os.File

	mu      sync.Mutex // guards the fields below; the epoll descriptor is not closed while mu is held
	epfd    int        // -1 after Run has ended
	last    uint64
	watches map[uint64]watch
}

// watch is a watched descriptor, which is closed when the watch ends. Keys of watches are not reused, so that an event that was received
// before a stop finds no watch.
type watch struct {
	fd int
	fn func()
}

// NewWatcher returns a Watcher. [Watcher.Run] releases its resources.
func NewWatcher() (*Watcher, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch peers: epoll_create1: %w", err)
	}
	if err := unix.SetNonblock(epfd, true); err != nil { // tells os.NewFile to use the runtime's poller
		return nil, errors.Join(fmt.Errorf("watch peers: %w", err), unix.Close(epfd))
	}
	return &Watcher{epoll: os.NewFile(uintptr(epfd), "epoll"), epfd: epfd, watches: map[uint64]watch{}}, nil
}

// WatchProcess calls fn when the process that called listen for conn ends. A process that reuses its PID is never watched. The connection
// may be closed afterwards. If the process has ended, the error wraps [ErrNotVisible]; if it ends during the call, fn may be called
// instead.
func (w *Watcher) WatchProcess(conn *net.UnixConn, fn func()) (stop func(), err error) {
	pidfd, err := peerPidfd(conn)
	if err != nil {
		return nil, err
	}
	return w.add(pidfd, unix.EPOLLIN, fn)
}

// WatchPID calls fn when the process with a PID and start ends; see [plugin.Peer]. If it has ended, or does not exist, the error wraps
// [ErrNotVisible].
func (w *Watcher) WatchPID(pid int, start uint64, fn func()) (stop func(), err error) {
	pidfd, err := openProcess(pid, start)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotVisible, err)
	}
	return w.add(pidfd, unix.EPOLLIN, fn)
}

// WatchConn takes over conn and calls fn when the peer closes it or sends anything, or has done so before. The connection is closed before
// fn is called, and by stop. Nothing is read from it. After an error, conn is unchanged and belongs to the caller.
func (w *Watcher) WatchConn(conn *net.UnixConn, fn func()) (stop func(), err error) {
	fd := -1
	err = Control(conn, func(orig int) (err error) {
		fd, err = unix.FcntlInt(uintptr(orig), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch a connection: %w", err)
	}
	stop, err = w.add(fd, unix.EPOLLIN|unix.EPOLLRDHUP, fn)
	if err != nil {
		return nil, err
	}
	_ = conn.Close() // leaves the runtime's poller; the duplicate keeps the connection open
	return stop, nil
}

// add watches fd. It closes fd after an error.
func (w *Watcher) add(fd int, events uint32, fn func()) (stop func(), err error) {
	// gofail: var sockWatch string
	// return nil, errors.Join(errors.New(sockWatch), unix.Close(fd))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epfd < 0 {
		return nil, errors.Join(errClosed, unix.Close(fd))
	}
	w.last++
	key := w.last
	ev := unix.EpollEvent{Events: events, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
	if err := unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return nil, errors.Join(fmt.Errorf("watch a peer: epoll_ctl: %w", err), unix.Close(fd))
	}
	w.watches[key] = watch{fd: fd, fn: fn}
	return func() { w.remove(key) }, nil
}

// Run calls the functions of the watches until ctx is done, then closes all descriptors and returns nil. It may be called once. An error is
// that of a system call for waiting.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.close()
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch peers: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = w.epoll.SetReadDeadline(time.Unix(1, 0)) })()
	_ = raw.Control(makeRoom)

	events := make([]unix.EpollEvent, 64)
	for ctx.Err() == nil {
		var n int
		var werr error
		err := raw.Read(func(fd uintptr) bool {
			n, werr = unix.EpollWait(int(fd), events, 0)
			return n > 0 || werr != nil && werr != unix.EINTR
		})
		if ctx.Err() != nil {
			return nil
		}
		if err := errors.Join(err, werr); err != nil {
			return fmt.Errorf("watch peers: epoll_wait: %w", err)
		}
		for _, ev := range events[:n] {
			if fn := w.remove(uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32); fn != nil {
				fn()
			}
		}
	}
	return nil
}

// room is the initial size of the descriptor table, if the limit of open files allows it. It suffices for 5,000 plugins, each with a
// connection and a process, and needs 130 KiB.
const room = 1 << 14

// makeRoom enlarges the process's descriptor table in advance. The kernel doubles the table when it is full. In a process with several
// threads, each doubling waits for all processors (expand_fdtable in the kernel's fs/file.c) and blocks new descriptors for 10 to 20 ms.
// Errors are ignored.
func makeRoom(fd uintptr) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return
	}
	if last, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, int(min(room, limit.Cur))-1); err == nil {
		_ = unix.Close(last)
	}
}

// remove ends a watch and returns its function, or nil if it has ended already.
func (w *Watcher) remove(key uint64) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	watched, ok := w.watches[key]
	if !ok {
		return nil
	}
	delete(w.watches, key)
	// Close alone does not suffice: a child between fork and exec has a copy of the descriptor, which keeps it in the epoll instance.
	_ = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_DEL, watched.fd, nil)
	_ = unix.Close(watched.fd)
	return watched.fn
}

func (w *Watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, watched := range w.watches {
		_ = unix.Close(watched.fd)
	}
	clear(w.watches)
	w.epfd = -1
	_ = w.epoll.Close()
}
