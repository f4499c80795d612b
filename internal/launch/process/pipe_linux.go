package process

import (
	"cmp"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pipe is a pipe between this process and one that is about to start. This process' end is in the runtime's poller, the other is not, and
// blocks.
type pipe struct{ read, write *os.File }

// newPipes makes the pipes for standard input, output and error.
func newPipes() (in, out, errs pipe, err error) {
	if in, err = newPipe(1); err != nil {
		return in, out, errs, err
	}
	if out, err = newPipe(0); err != nil {
		return in, out, errs, err
	}
	errs, err = newPipe(0)
	return in, out, errs, err
}

// newPipe makes a pipe of which this process has the given end.
func newPipe(own int) (pipe, error) {
	// gofail: var processPipe string
	// return pipe{}, fmt.Errorf("make a pipe: %s", processPipe)
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return pipe{}, fmt.Errorf("make a pipe: %w", err)
	}
	_ = unix.SetNonblock(fds[own], true) // cannot fail on a pipe
	return pipe{read: os.NewFile(uintptr(fds[0]), "pipe"), write: os.NewFile(uintptr(fds[1]), "pipe")}, nil
}

// feed writes what a process will read first. There is nobody yet to read it, so it has to fit into the pipe.
func feed(w *os.File, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	// gofail: var processFeed string
	// return fmt.Errorf("write %d bytes for standard input: %s", len(b), processFeed)
	n := 0
	err := control(w, func(fd int) (err error) {
		n, err = unix.Write(fd, b)
		return err
	})
	if n != len(b) {
		return fmt.Errorf("write %d bytes for standard input, of which %d fit: %w", len(b), max(n, 0), cmp.Or(err, error(unix.EAGAIN)))
	}
	return nil
}

func (p pipe) inode() uint64 {
	var stat unix.Stat_t
	_ = control(p.read, func(fd int) error { return unix.Fstat(fd, &stat) }) // cannot fail on a pipe
	return stat.Ino
}

func (p pipe) closeRead()  { _ = p.read.Close() }
func (p pipe) closeWrite() { _ = p.write.Close() }

func (p pipe) close() {
	if p.read != nil {
		p.closeRead()
		p.closeWrite()
	}
}

// control runs f on the descriptor of a file or connection.
func control(of syscall.Conn, f func(fd int) error) error {
	raw, err := of.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// events returns which of the events are there now on fd.
func events(fd int, which int16) int16 {
	p := []unix.PollFd{{Fd: int32(fd), Events: which}}
	for {
		if _, err := unix.Poll(p, 0); err != unix.EINTR {
			return p[0].Revents
		}
	}
}
