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

// Watcher tells when the peers of connections go, at once and without polling: their processes end ([Watcher.WatchProcess]), or they close
// the connection ([Watcher.WatchConn]). Each watch costs one descriptor, some hundred bytes and no goroutine: all of them are in one epoll
// instance, which is itself in the Go runtime's poller.
//
// Make one with [NewWatcher] and call its Run. The methods that watch are safe for concurrent use, also before Run starts.
//
// A function that is handed to one of them is called once, on the goroutine of Run, and must not block. The stop that comes back ends the
// watch and may be called any number of times and from anywhere, also from the function: afterwards the function will not start, but a
// call that has started may still be running, because stop does not wait for it.
type Watcher struct {
	epoll *os.File

	mu      sync.Mutex // guards what follows, and the epoll descriptor against its close
	epfd    int        // -1 after Run ended
	last    uint64
	watches map[uint64]watch
}

// watch is one descriptor that is watched, and closed when its watch ends. Its key in [Watcher] is never used again, so that an event that
// was fetched before a stop finds nothing.
type watch struct {
	fd int
	fn func()
}

// NewWatcher makes the epoll instance. [Watcher.Run] releases it.
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

// WatchProcess has fn called when the process that serves conn ends. That is the process which called listen, and it is never
// another one that has got the same PID meanwhile. The connection is not kept: it may be closed afterwards. If the process has ended
// already, the error wraps [ErrNotVisible], unless it ends at this very moment: then fn is called soon.
func (w *Watcher) WatchProcess(conn *net.UnixConn, fn func()) (stop func(), err error) {
	pidfd, err := peerPidfd(conn)
	if err != nil {
		return nil, err
	}
	return w.add(pidfd, unix.EPOLLIN, fn)
}

// WatchPID has fn called when a process ends, which is named by its number and start; see [Peer]. If it has ended already, or is not
// known, the error wraps [ErrNotVisible].
func (w *Watcher) WatchPID(pid int, start uint64, fn func()) (stop func(), err error) {
	pidfd, err := openProcess(pid, start)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotVisible, err)
	}
	return w.add(pidfd, unix.EPOLLIN, fn)
}

// WatchConn takes over conn and has fn called when the peer closes it or sends anything at all; which is soon if the peer has done so
// already. The connection is closed before fn is called, and by stop; nothing is read from it. If it returns an error, conn is as before.
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

// add watches fd, which it closes if that fails.
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

// Run calls the functions of the watches until ctx is done, then closes all descriptors and returns nil. No function is called after it
// returned. It may be called once. An error means that the kernel refused to wait; it names the call.
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

// room is how many descriptors the process has room for, unless it may open fewer: with a connection and a process for each, more than
// 5,000 plugins. It takes 130 KiB.
const room = 1 << 14

// makeRoom has the kernel make the process's table of descriptors as large as it will become. The table doubles when it is full, and in a
// process with several threads each doubling waits for all processors (expand_fdtable in the kernel's fs/file.c), 10 to 20 ms, in which
// nobody gets a descriptor: one at the start instead of five while a thousand plugins come. That it fails means nothing.
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
	// Not left to the close: a child between fork and exec has a copy of the descriptor, which would keep it in the epoll instance.
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
