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

// Exits tells when the processes behind connections end, at once and without polling. Each watched process costs one descriptor (its
// pidfd) and no goroutine: all of them are in one epoll instance, which is itself in the Go runtime's poller.
//
// Make one with [NewExits] and call its Run. Watch is safe for concurrent use, also before Run starts.
type Exits struct {
	epoll *os.File

	mu      sync.Mutex // guards what follows, and the epoll descriptor against its close
	epfd    int        // -1 after Run ended
	last    uint64
	watches map[uint64]watch
}

// watch is one watched process. Its key in [Exits] is never used again, so that an event that was fetched before a stop finds nothing.
type watch struct {
	pidfd int
	fn    func()
}

// NewExits makes the epoll instance. [Exits.Run] releases it.
func NewExits() (*Exits, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: epoll_create1: %w", err)
	}
	if err := unix.SetNonblock(epfd, true); err != nil { // tells os.NewFile to use the runtime's poller
		return nil, errors.Join(fmt.Errorf("watch processes: %w", err), unix.Close(epfd))
	}
	return &Exits{epoll: os.NewFile(uintptr(epfd), "epoll"), epfd: epfd, watches: map[uint64]watch{}}, nil
}

// Watch has fn called once when the process that serves conn ends. That is the process which called listen, and it is never
// another one that has got the same PID meanwhile. The connection is not kept: it may be closed afterwards. If the process has ended
// already, fn is called soon or the error wraps [ErrNotVisible].
//
// fn runs on the goroutine of Run and must not block. stop ends the watch and may be called any number of times and from anywhere, also
// from fn: afterwards fn will not start, but a call that has started may still be running, because stop does not wait for it.
func (e *Exits) Watch(conn *net.UnixConn, fn func()) (stop func(), err error) {
	pidfd, err := peerPidfd(conn)
	if err != nil {
		return nil, err
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epfd < 0 {
		return nil, errors.Join(ErrClosed, unix.Close(pidfd))
	}
	e.last++
	key := e.last
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
	if err := unix.EpollCtl(e.epfd, unix.EPOLL_CTL_ADD, pidfd, &ev); err != nil {
		return nil, errors.Join(fmt.Errorf("watch a process: epoll_ctl: %w", err), unix.Close(pidfd))
	}
	e.watches[key] = watch{pidfd: pidfd, fn: fn}
	return func() { e.remove(key) }, nil
}

// Run calls the functions of the processes that end until ctx is done, then closes all descriptors and returns nil. No function is called
// after it returned. It may be called once. An error means that the kernel refused to wait; it names the call.
func (e *Exits) Run(ctx context.Context) error {
	defer e.close()
	raw, err := e.epoll.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch processes: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = e.epoll.SetReadDeadline(time.Unix(1, 0)) })()

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
			return fmt.Errorf("watch processes: epoll_wait: %w", err)
		}
		for _, ev := range events[:n] {
			if w, ok := e.remove(uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32); ok {
				w.fn()
			}
		}
	}
	return nil
}

// remove ends a watch, unless it has ended, and returns it.
func (e *Exits) remove(key uint64) (watch, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w, ok := e.watches[key]
	if !ok {
		return watch{}, false
	}
	delete(e.watches, key)
	// Not left to the close: a child between fork and exec has a copy of the descriptor, which would keep it in the epoll instance.
	_ = unix.EpollCtl(e.epfd, unix.EPOLL_CTL_DEL, w.pidfd, nil)
	_ = unix.Close(w.pidfd)
	return w, true
}

func (e *Exits) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.watches {
		_ = unix.Close(w.pidfd)
	}
	clear(e.watches)
	e.epfd = -1
	_ = e.epoll.Close()
}
