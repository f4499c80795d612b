//go:build linux

package process

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stateDir returns a directory with a path that is short enough for sockets.
func stateDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func surviving(r *role) Spec {
	spec := r.spec()
	spec.Survive, spec.Data = true, []byte("what a host remembers")
	return spec
}

// adoptOnly adopts the only surviving process.
func adoptOnly(t testing.TB, g *Group) *Process {
	t.Helper()
	procs, err := g.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(procs) != 1 {
		t.Fatalf("adopted %d processes, want 1", len(procs))
	}
	p := procs[0]
	t.Cleanup(func() { _, _ = p.Stdout().Close(), p.Stderr().Close() })
	return p
}

// keeperOf returns the keeper of a process, which is the parent of the process or of its reaper.
func keeperOf(t testing.TB, pid int) procID {
	t.Helper()
	s, ok := readStat(pid)
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(s.parent) + "/comm")
	if strings.HasPrefix(string(comm), helperName+roleReaper) {
		return keeperOf(t, s.parent)
	}
	if !ok || err != nil || !strings.HasPrefix(string(comm), helperName+roleKeeper) {
		t.Fatalf("the parent of process %d is %d: %s, %v", pid, s.parent, comm, err)
	}
	return process(t, s.parent)
}

func remembered(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// When the host is killed, the process keeps running; a later host adopts it and ends its whole tree.
func TestSurvivesTheDeathOfTheHost(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		dir := stateDir(t)
		h := startHostOf(t, hosting{Cgroup: cgroup, StateDir: dir, Procs: []Spec{surviving(&role{
			Stay: true, Deaf: true, Children: []*role{{Stay: true, Deaf: true, Setsid: true}},
		})}})
		all := h.everyone(t)
		keeper := keeperOf(t, all[0].pid)
		h.kill(t)

		g := newGroup(t, &Group{Cgroup: cgroup, StateDir: dir})
		p := adoptOnly(t, g)
		if p.PID() != all[0].pid || p.Name() != "test" || string(p.Data()) != "what a host remembers" || p.Err() != nil {
			t.Errorf("adopted %d %q %q, %v", p.PID(), p.Name(), p.Data(), p.Err())
		}
		for _, id := range all {
			if !id.there() || !p.Owns(id.pid) {
				t.Errorf("process %d: there %v, owned %v", id.pid, id.there(), p.Owns(id.pid))
			}
		}
		if p.Owns(os.Getpid()) {
			t.Error("owns a stranger")
		}
		err := p.Terminate(t.Context(), Grace{Stdin: -1, Term: -1, Kill: time.Minute})
		if exit := new(exitError); !errors.As(err, &exit) || exit.Signal != unix.SIGKILL || exit.Code != -1 {
			t.Errorf("Terminate returned %v", err)
		}
		awaitEnds(t, append(all, keeper))
		if left := remembered(t, dir); len(left) > 0 {
			t.Errorf("remembered: %v", left)
		}
	})
}

func TestSurvivesClose(t *testing.T) {
	dir := stateDir(t)
	spec := surviving(&role{Exit: 7})
	for i := range 3 {
		g := newGroup(t, &Group{StateDir: dir})
		var p *Process
		if i == 0 {
			var err error
			if p, err = g.Start(spec); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(p.Stdout()).ReadString('\n')
			if err != nil || !strings.Contains(line, strconv.Itoa(p.PID())) {
				t.Errorf("it says %q, %v", line, err)
			}
			_, _ = p.Stdout().Close(), p.Stderr().Close()
		} else {
			p = adoptOnly(t, g)
		}
		if i < 2 {
			if err := g.Close(t.Context()); err != nil {
				t.Error(err)
			}
			<-p.Done()
			if !errors.Is(p.Err(), errReleased) {
				t.Errorf("Err is %v", p.Err())
			}
			process(t, p.PID())
			continue
		}
		err := p.Terminate(t.Context(), Grace{Stdin: time.Minute})
		if exit := new(exitError); !errors.As(err, &exit) || exit.Code != 7 {
			t.Errorf("Terminate returned %v", err)
		}
	}
}

// Without a host, the process is never blocked by its output, and the last output is kept for the next host.
func TestOutputWithoutHost(t *testing.T) {
	dir := stateDir(t)
	g := newGroup(t, &Group{StateDir: dir})
	p, err := g.Start(Spec{
		Path: "/bin/sh", Args: []string{"sh", "-c", "read go; head -c 1000000 /dev/zero; echo; echo the end; exec cat"},
		Env: []string{"PATH=" + os.Getenv("PATH")}, Survive: true, Stdin: reads([]byte("go\n")),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = p.Stdout().Close(), p.Stderr().Close()
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	comm := "/proc/" + strconv.Itoa(p.PID()) + "/comm"
	await(t, "it has written all", func() bool { b, _ := os.ReadFile(comm); return string(b) == "cat\n" })

	p = adoptOnly(t, newGroup(t, &Group{StateDir: dir}))
	text := make(chan string)
	go func() {
		b, err := io.ReadAll(p.Stdout())
		if err != nil {
			t.Error(err)
		}
		text <- string(b)
	}()
	if err := p.Terminate(t.Context(), Grace{Stdin: time.Minute}); err != nil {
		t.Error(err)
	}
	if got := <-text; !strings.HasSuffix(got, "\nthe end\n") || len(got) > 200_000 { // the kept output, and what the pipe held
		t.Errorf("%d bytes of output: %q", len(got), got[max(0, len(got)-20):])
	}
}

func TestSurviveFails(t *testing.T) {
	dir := stateDir(t)
	g := newGroup(t, &Group{StateDir: dir})
	if _, err := g.Start(Spec{Path: "/does/not/exist", Survive: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
	if left := remembered(t, dir); len(left) > 0 {
		t.Errorf("remembered: %v", left)
	}
	if _, err := newGroup(t, &Group{}).Start(Spec{Path: "/bin/true", Survive: true}); err == nil {
		t.Error("it started without a directory")
	}
}

// A stale socket is removed; a process that another host holds is not adopted.
func TestAdoptLooks(t *testing.T) {
	dir := stateDir(t)
	stale := filepath.Join(dir, "stale"+socketSuffix)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	first := newGroup(t, &Group{StateDir: dir})
	p, err := first.Start(surviving(&role{}))
	if err != nil {
		t.Fatal(err)
	}
	s := listen(t, p)
	procs, err := newGroup(t, &Group{StateDir: dir}).Adopt(t.Context())
	if len(procs) > 0 || err == nil || !strings.Contains(err.Error(), "another host holds it") {
		t.Errorf("adopted %v, %v", procs, err)
	}
	if procs, err := first.Adopt(t.Context()); len(procs) > 0 || err != nil {
		t.Errorf("its own host adopted %v, %v", procs, err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stale socket: %v", err)
	}
	if err := s.Terminate(t.Context(), Grace{Stdin: time.Minute}); err != nil {
		t.Error(err)
	}
}

// TestKeeperIsKilled: no descendant of a survivor outlives the keeper, even if it left the process group.
func TestKeeperIsKilled(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{StateDir: stateDir(t), Cgroup: cgroup})
		p, err := g.Start(surviving(&role{Stay: true, Deaf: true, Children: []*role{
			{Stay: true, Deaf: true, Setsid: true}, {Stay: true, Deaf: true, Setsid: true, Silent: true},
		}}))
		if err != nil {
			t.Fatal(err)
		}
		all := processes(t, listen(t, p).everyone())
		keeperOf(t, p.PID()).kill()
		awaitEnds(t, all)
		<-p.Done()
		if !errors.Is(p.Err(), errKeeper) {
			t.Errorf("Err is %v", p.Err())
		}
	})
}

func TestStatus(t *testing.T) {
	for script, want := range map[string][2]int{"exit 0": {0, 0}, "exit 3": {3, 0}, "kill -9 $$": {-1, 9}} {
		err := exec.Command("/bin/sh", "-c", script).Run()
		if code, sig := status(err); code != want[0] || int(sig) != want[1] {
			t.Errorf("%s: %d, %d", script, code, sig)
		}
	}
}

// A plugin ignores no signals, even if this process does, for example because of nohup.
func TestNoSignalIsIgnored(t *testing.T) {
	signal.Ignore(unix.SIGUSR2)
	t.Cleanup(func() { signal.Reset(unix.SIGUSR2) })
	const want = "SigIgn:\t0000000000000000\n"
	g := newGroup(t, &Group{StateDir: stateDir(t)})
	for _, survive := range []bool{false, true} {
		p, err := g.Start(Spec{Path: "/bin/grep", Args: []string{"grep", "SigIgn", "/proc/self/status"}, Survive: survive})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(p.Stdout())
		if string(b) != want || err != nil {
			t.Errorf("survive %v: %q, %v, want %q", survive, b, err, want)
		}
		_, _ = p.Stdout().Close(), p.Stderr().Close()
		<-p.Done()
	}
}
