// Package usertest connects to Unix sockets with the credentials of other users, for tests of what servers allow each user and how much
// each may hold. It needs root. It does not change the user of the test itself.
package usertest

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// Dial connects with the credentials of a user. The connection is closed when the test ends.
func Dial(t *testing.T, path string, uid, gid uint32, groups ...uint32) *net.UnixConn {
	t.Helper()
	type result struct {
		conn *net.UnixConn
		err  error
	}
	dialed := make(chan result)
	go func() {
		// The credentials are those of the thread. It stays locked, so it ends with this goroutine and never runs another one.
		runtime.LockOSThread()
		for _, call := range [][3]uintptr{
			{syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups)))},
			{syscall.SYS_SETRESGID, uintptr(gid), uintptr(gid)},
			{syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid)},
		} {
			if _, _, errno := syscall.RawSyscall(call[0], call[1], call[2], call[2]); errno != 0 {
				dialed <- result{err: errno}
				return
			}
		}
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		for errors.Is(err, syscall.EAGAIN) { // the queue of the listener is full
			time.Sleep(time.Millisecond) //nolint:forbidigo // the kernel does not report when there is room again
			conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		}
		dialed <- result{conn, err}
	}()
	got := <-dialed
	if got.err != nil {
		t.Fatal(got.err)
	}
	t.Cleanup(func() { _ = got.conn.Close() })
	return got.conn
}

// Listen listens on a socket of a group to which every user can connect, and returns its path. It skips the test without root.
func Listen(t *testing.T, gid int) (net.Listener, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as other users")
	}
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "control.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o666), os.Chown(path, 0, gid)); err != nil {
		t.Fatal(err)
	}
	return listener, path
}

// preface is the beginning of an HTTP/2 connection without calls.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// HoldIdle opens count idle connections as a user, and sends to closed when the server closes one.
func HoldIdle(t *testing.T, closed chan<- struct{}, path string, uid, gid uint32, count int) {
	t.Helper()
	for range count {
		conn := Dial(t, path, uid, gid)
		go func() {
			_, _ = io.WriteString(conn, preface)
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
}

// AwaitClosed waits until count connections of HoldIdle are closed.
func AwaitClosed(t *testing.T, closed <-chan struct{}, count int) {
	t.Helper()
	deadline := time.After(20 * time.Second) //nolint:forbidigo // once per test
	for n := range count {
		select {
		case <-closed:
		case <-deadline:
			t.Fatalf("%d idle connections were closed, want %d", n, count)
		}
	}
}
