package process

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// toKeeper is what a host tells a keeper: what to start, which is said once and by the host that starts it, and then steps towards the end.
type toKeeper struct {
	Start  *Spec  `json:"start,omitempty"` // its ExtraFiles come with the message
	Cgroup string `json:"cgroup,omitempty"`
	Socket string `json:"socket,omitempty"`
	Step   step   `json:"step,omitempty"`
}

// fromKeeper is what a keeper tells a host: first what it keeps, with the pipes for output and error, or why not; last how it ended.
type fromKeeper struct {
	Name   string `json:"name,omitempty"`
	Data   []byte `json:"data,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Start  uint64 `json:"start,omitempty"`
	Cgroup string `json:"cgroup,omitempty"` // as in proc_pid_cgroup(5), empty if there is none
	Dir    string `json:"dir,omitempty"`    // of that cgroup

	Error string        `json:"error,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Busy  bool          `json:"busy,omitempty"` // another host holds it

	Ended  bool           `json:"ended,omitempty"`
	Code   int            `json:"code,omitempty"`
	Signal syscall.Signal `json:"signal,omitempty"`
}

// wire is one connection between a host and a keeper: JSON values one after the other, the first of which may come with files.
type wire struct {
	conn    *net.UnixConn
	decoder *json.Decoder
	files   []*os.File
}

func newWire(conn *net.UnixConn) *wire {
	w := &wire{conn: conn}
	w.decoder = json.NewDecoder(w)
	return w
}

// Read reads, and keeps the files that come with what it reads.
func (w *wire) Read(b []byte) (int, error) {
	const most = 253 // files in one message, by the kernel
	oob := make([]byte, unix.CmsgSpace(most*4))
	n, oobn, _, _, err := w.conn.ReadMsgUnix(b, oob)
	if oobn > 0 {
		messages, merr := unix.ParseSocketControlMessage(oob[:oobn])
		if merr != nil {
			return n, merr
		}
		for _, message := range messages {
			fds, merr := unix.ParseUnixRights(&message)
			if merr != nil {
				return n, merr
			}
			for _, fd := range fds {
				w.files = append(w.files, os.NewFile(uintptr(fd), "received"))
			}
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

// send sends a value. It waits a moment for a peer that does not read, and not longer.
func (w *wire) send(v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	const patience = time.Second
	if err := w.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			if err := control(f, func(fd int) error { fds[i] = fd; return nil }); err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	n, _, err := w.conn.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = w.conn.Write(b[n:])
	}
	return err
}

func (w *wire) closeFiles() {
	for _, f := range w.files {
		_ = f.Close()
	}
	w.files = nil
}

// newWires makes a connected pair of which the peer's end is a file to be passed on.
func newWires() (own *wire, peer *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	peer = os.NewFile(uintptr(fds[1]), "peer")
	own, err = fileWire(os.NewFile(uintptr(fds[0]), "own"))
	if err != nil {
		_ = peer.Close()
		return nil, nil, err
	}
	return own, peer, nil
}

// fileWire takes over a socket.
func fileWire(f *os.File) (*wire, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("a %T instead of a Unix socket", conn)
	}
	return newWire(unixConn), nil
}

// peer returns who is at the other end of a connection, which says who listens there.
func peer(conn *net.UnixConn) (cred *unix.Ucred, err error) {
	err = control(conn, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}
