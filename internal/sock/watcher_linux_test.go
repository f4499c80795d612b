package sock

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// runWatcher returns a Watcher that runs until the end of the test or until stop is called.
func runWatcher(t testing.TB) (w *Watcher, stop func()) {
	t.Helper()
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return w, stop
}

func dial(t testing.TB, path string) *net.UnixConn {
	t.Helper()
	conn, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestExitIsTold(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	cmd, said := startChild(t, "serve", path)
	if said != "listening" {
		t.Fatal(said)
	}
	w, _ := runWatcher(t)
	before := openFiles(t)
	conn := dial(t, path)
	told := make(chan struct{}, 10)
	stop, err := w.WatchProcess(conn, func() { told <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil { // not needed for the watch
		t.Fatal(err)
	}
	if n := openFiles(t) - before; n != 1 {
		t.Errorf("a watched process costs %d descriptors, want 1", n)
	}
	select {
	case <-told:
		t.Fatal("told of a living process")
	default:
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-told
	_ = cmd.Wait()
	stop()
	stop()
	if n := openFiles(t); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	if len(told) != 0 {
		t.Error("told twice")
	}
}

// TestDeadBeforeWatch connects, and the process ends before it is watched.
func TestDeadBeforeWatch(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	cmd, said := startChild(t, "serve", path)
	if said != "listening" {
		t.Fatal(said)
	}
	conn := dial(t, path)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	w, _ := runWatcher(t)
	told := make(chan struct{})
	_, err := w.WatchProcess(conn, func() { close(told) })
	switch {
	case err == nil:
		<-told
	case !errors.Is(err, ErrNotVisible):
		t.Errorf("Watch: %v", err)
	}
}

// TestPidfdByPID is the way of kernels before 6.5.
func TestPidfdByPID(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	cmd, said := startChild(t, "serve", path)
	if said != "listening" {
		t.Fatal(said)
	}
	conn := dial(t, path)
	open := func() (pidfd int, err error) {
		err = Control(conn, func(fd int) (err error) {
			pidfd, err = pidfdByPID(fd)
			return err
		})
		return pidfd, err
	}
	pidfd, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)

	before := openFiles(t)
	_ = cmd.Process.Kill()
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 20_000); n != 1 {
		t.Fatalf("the pidfd does not tell the end: %d, %v", n, err)
	}
	// Not waited for yet, so the PID is taken and can be opened: only the closed connection says that the process has ended.
	if fd, err := open(); err == nil {
		_ = unix.Close(fd)
		t.Error("a process that has ended was opened")
	}
	if n := openFiles(t); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

func TestStopEndsAWatch(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	cmd, said := startChild(t, "serve", path)
	if said != "listening" {
		t.Fatal(said)
	}
	conn := dial(t, path)
	w, _ := runWatcher(t)
	stop, err := w.WatchProcess(conn, func() { t.Error("told after stop") })
	if err != nil {
		t.Fatal(err)
	}
	stop()
	told := make(chan struct{})
	if _, err := w.WatchProcess(conn, func() { close(told) }); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	<-told
}

// TestThousandsOfWatches has watches on a few processes come and go from several goroutines while processes end.
func TestThousandsOfWatches(t *testing.T) {
	const children, watches = 4, 1000
	dir := tempDir(t)
	w, stopRun := runWatcher(t)
	before := openFiles(t)
	var told [children][watches]atomic.Int32
	var stopped [children][watches]bool
	var live atomic.Int64
	var wg sync.WaitGroup
	for c := range children {
		path := filepath.Join(dir, string(rune('a'+c)))
		cmd, said := startChild(t, "serve", path)
		if said != "listening" {
			t.Fatal(said)
		}
		conn, err := Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer conn.Close()
			for i := range watches {
				live.Add(1)
				stop, err := w.WatchProcess(conn, func() { told[c][i].Add(1); live.Add(-1) })
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					stop()
					stopped[c][i] = true
					live.Add(-1)
				}
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	wg.Wait()
	eventually(t, "every end is told", func() bool { return live.Load() == 0 })
	for c := range children {
		for i := range watches {
			want := int32(1)
			if stopped[c][i] {
				want = 0
			}
			if n := told[c][i].Load(); n != want {
				t.Fatalf("watch %d of process %d was told %d times, want %d", i, c, n, want)
			}
		}
	}
	stopRun()
	if n := openFiles(t); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

// TestStopRacesExit stops watches at the moment in which their process ends: each is told once or not at all.
func TestStopRacesExit(t *testing.T) {
	dir := tempDir(t)
	w, _ := runWatcher(t)
	for range 5 {
		path := filepath.Join(dir, "s")
		cmd, said := startChild(t, "serve", path)
		if said != "listening" {
			t.Fatal(said)
		}
		conn := dial(t, path)
		var told [200]atomic.Int32
		var stops [len(told)]func()
		for i := range told {
			var err error
			if stops[i], err = w.WatchProcess(conn, func() { told[i].Add(1) }); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Process.Kill()
		for _, stop := range stops {
			stop()
		}
		_ = cmd.Wait()
		for i := range told {
			if n := told[i].Load(); n > 1 {
				t.Errorf("told %d times", n)
			}
		}
		w.mu.Lock()
		if n := len(w.watches); n != 0 {
			t.Errorf("%d watches left", n)
		}
		w.mu.Unlock()
		unix.Unlink(path)
	}
}

func TestWatchAfterRun(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	if _, said := startChild(t, "serve", path); said != "listening" {
		t.Fatal(said)
	}
	conn := dial(t, path)
	w, stopRun := runWatcher(t)
	stop, err := w.WatchProcess(conn, func() { t.Error("told") })
	if err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	stopRun()
	stop()
	if _, err := w.WatchProcess(conn, func() {}); !errors.Is(err, errClosed) {
		t.Errorf("Watch after Run: %v", err)
	}
	if n := openFiles(t); n != before-2 { // the pidfd and the epoll instance
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

// connection returns a connection and the server's end of it.
func connection(t testing.TB) (conn, server *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(tempDir(t), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn = dial(t, l.Addr().String())
	if server, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return conn, server
}

func TestWatchConn(t *testing.T) {
	for name, end := range map[string]func(*net.UnixConn) error{
		"closed":      (*net.UnixConn).Close,
		"half-closed": (*net.UnixConn).CloseWrite,
		"sent to":     func(c *net.UnixConn) error { _, err := c.Write([]byte{0}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			for _, before := range []bool{false, true} { // whether it happens before the watch
				w, _ := runWatcher(t)
				files := openFiles(t)
				conn, server := connection(t)
				if before {
					if err := end(server); err != nil {
						t.Fatal(err)
					}
				}
				told := make(chan struct{})
				stop, err := w.WatchConn(conn, func() { close(told) })
				if err != nil {
					t.Fatal(err)
				}
				if err := conn.Close(); !errors.Is(err, net.ErrClosed) {
					t.Errorf("the connection is still the caller's: %v", err)
				}
				if !before {
					select {
					case <-told:
						t.Fatal("told of an open connection")
					default:
					}
					if n := openFiles(t) - files; n != 2 { // and the server's end
						t.Errorf("a watched connection costs %d descriptors, want 1", n-1)
					}
					if err := end(server); err != nil {
						t.Fatal(err)
					}
				}
				<-told
				if n, err := server.Read(make([]byte, 1)); n != 0 || err == nil {
					t.Errorf("the connection is not closed: %d, %v", n, err)
				}
				stop()
				_ = server.Close()
				if n := openFiles(t) - files; n != 0 {
					t.Errorf("%d descriptors left", n)
				}
			}
		})
	}
}

func TestStopClosesAWatchedConn(t *testing.T) {
	w, _ := runWatcher(t)
	conn, server := connection(t)
	stop, err := w.WatchConn(conn, func() { t.Error("told after stop") })
	if err != nil {
		t.Fatal(err)
	}
	stop()
	stop()
	if n, err := server.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the connection is not closed: %d, %v", n, err)
	}
}

func TestEndOfRunClosesWatchedConns(t *testing.T) {
	w, stopRun := runWatcher(t)
	conn, server := connection(t)
	if _, err := w.WatchConn(conn, func() { t.Error("told") }); err != nil {
		t.Fatal(err)
	}
	stopRun()
	if n, err := server.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the connection is not closed: %d, %v", n, err)
	}
	conn, server = connection(t)
	if _, err := w.WatchConn(conn, func() { t.Error("told") }); !errors.Is(err, errClosed) {
		t.Errorf("WatchConn after Run: %v", err)
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Errorf("the connection is not as before: %v", err)
	}
	_ = server.Close()
}

func TestProbeWatch(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	w, _ := runWatcher(t)
	if _, err := w.ProbeWatch(t.Context(), path, func() {}); !IsGone(err) {
		t.Errorf("no socket: %v", err)
	}
	cmd, said := startChild(t, "serve", path)
	if said != "listening" {
		t.Fatal(said)
	}
	files := openFiles(t)
	told := make(chan struct{})
	if _, err := w.ProbeWatch(t.Context(), path, func() { close(told) }); err != nil {
		t.Fatal(err)
	}
	if n := openFiles(t) - files; n != 1 {
		t.Errorf("a watched process costs %d descriptors, want 1", n)
	}
	_ = cmd.Process.Kill()
	<-told
	if _, err := w.ProbeWatch(t.Context(), path, func() {}); !IsRefused(err) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestWatchPID(t *testing.T) {
	cmd, _ := startChild(t, "serve", filepath.Join(tempDir(t), "s"))
	pid := cmd.Process.Pid
	w, _ := runWatcher(t)
	for what, started := range map[string]uint64{"another process of the number": Start(pid) + 1, "an unknown one": 0} {
		if _, err := w.WatchPID(pid, started, func() {}); !errors.Is(err, ErrNotVisible) {
			t.Errorf("%s is watched: %v", what, err)
		}
	}
	told := make(chan struct{})
	started := Start(pid)
	if _, err := w.WatchPID(pid, started, func() { close(told) }); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-told
	_ = cmd.Wait()
	if _, err := w.WatchPID(pid, started, func() {}); !errors.Is(err, ErrNotVisible) {
		t.Errorf("one that has ended is watched: %v", err)
	}
}

// TestRoom: a process that watches has room for its descriptors, before it has them.
func TestRoom(t *testing.T) {
	runWatcher(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	size := regexp.MustCompile(`(?m)^FDSize:\s+(\d+)$`)
	for want := min(room, limit.Cur); ; {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		found := size.FindSubmatch(status)
		if found == nil {
			t.Fatalf("no size of the table in\n%s", status)
		}
		if n, err := strconv.ParseUint(string(found[1]), 10, 64); err != nil || n >= want {
			return
		}
		runtime.Gosched()
	}
}
