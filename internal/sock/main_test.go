package sock

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// childEnv tells the re-executed test binary which part to play.
const childEnv = "SOCK_TEST_CHILD"

func TestMain(m *testing.M) {
	switch role, path, _ := strings.Cut(os.Getenv(childEnv), ":"); role {
	case "":
		leaktest.Main(m)
	case "serve":
		child(net.Listen("unix", path))
	case "own":
		l, err := Listen(path, 0o600)
		child(l, err)
	case "share":
		l, err := Listen(path, 0o600)
		if err == nil {
			err = share(l)
		}
		child(l, err)
	}
}

// child says whether it listens, then accepts until its standard input ends.
func child(l net.Listener, err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	fmt.Println("listening")
	var b [1]byte
	_, _ = os.Stdin.Read(b[:])
	os.Exit(0)
}

// startChild starts this test binary in the given role and waits for its first line.
func startChild(t testing.TB, role, path string) (cmd *exec.Cmd, said string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+role+":"+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var line []byte
	for b := make([]byte, 1); ; {
		if n, err := out.Read(b); n == 0 || err != nil || b[0] == '\n' {
			return cmd, string(line)
		}
		line = append(line, b[0])
	}
}

// tempDir returns a directory with a path that is short enough for sockets.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "so")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// serve listens on a new socket, accepts and keeps what it accepts until the end of the test.
func serve(t testing.TB, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	accept(t, l)
	return l
}

// accept accepts connections of l and keeps them until the end of the test.
func accept(t testing.TB, l net.Listener) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
}

// stale leaves a socket file on which nobody listens.
func stale(t testing.TB, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustStat(t testing.TB, path string) Info {
	t.Helper()
	info, err := Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// names lists a directory.
func names(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil {
		t.Fatal(err)
	}
	list := slices.Concat(paths, hidden)
	for i := range list {
		list[i] = filepath.Base(list[i])
	}
	return list
}
