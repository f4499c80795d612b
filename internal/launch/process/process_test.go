//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestLife(t *testing.T) {
	kernels(t, func(t *testing.T, cgroup string, prepare func(*Group)) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		prepare(g)
		p := start(t, g, &role{Echo: true, Exit: 7}, func(s *Spec) { s.Stdin = reads([]byte("first line\n")) })
		if p.Text != "first line\n" || p.said.PID != p.Process.PID() || p.Err() != nil {
			t.Errorf("it says %+v, Err is %v", p.said, p.Err())
		}
		err := p.Terminate(t.Context(), Grace{Stdin: time.Minute})
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 7 || !errors.Is(p.Err(), err) {
			t.Errorf("Terminate returned %v, Err is %v, want status 7", err, p.Err())
		}
		if err := p.Terminate(t.Context(), Grace{}); !errors.Is(err, p.Err()) {
			t.Errorf("again: %v", err)
		}
	})
}

func TestEnvironmentIsExact(t *testing.T) {
	g := newGroup(t, &Group{})
	for _, env := range [][]string{nil, {"A=1", "B=2"}} {
		p, err := g.Start(Spec{Path: "/usr/bin/env", Env: env, Dir: "/"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(p.Stdout())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = p.Stdout().Close(), p.Stderr().Close()
		if diff := cmp.Diff(env, strings.Fields(string(b)), cmp.Transformer("nil", func(s []string) int { return len(s) })); diff != "" {
			t.Errorf("environment: %s", b)
		}
		<-p.Done()
		if p.Err() != nil {
			t.Error(p.Err())
		}
	}
}

func TestStartFails(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		start(t, g, &role{}) // so that the watchdog is there
		before := descriptors(t)
		file := filepath.Join(t.TempDir(), "not executable")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]error{"/does/not/exist": fs.ErrNotExist, file: fs.ErrPermission} {
			if _, err := g.Start(Spec{Path: path}); !errors.Is(err, want) {
				t.Errorf("start of %s: %v, want %v", path, err, want)
			}
		}
		if _, err := g.Start(Spec{Path: "/bin/true", Stdin: reads(make([]byte, 1<<17))}); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("too much for standard input: %v", err)
		}
		child := filepath.Join(t.TempDir(), "child")
		late := errors.New("it does not exist")
		var started procID
		input := func() ([]byte, error) {
			for pid := 0; pid == 0; {
				raw, _ := os.ReadFile(child)
				if _, err := fmt.Sscanf(string(raw), "%d\n", &pid); err == nil {
					started = process(t, pid)
				}
			}
			return nil, late
		}
		script := "sleep 1000 & echo $! >" + child + "; sleep 1000"
		if _, err := g.Start(Spec{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ(), Stdin: input}); !errors.Is(err, late) {
			t.Errorf("an input that fails: %v", err)
		}
		if started.there() {
			t.Error("what the program had started goes on")
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors, %d before", after, before)
		}
	})
}

func TestTerminate(t *testing.T) {
	tests := map[string]struct {
		role  role
		grace Grace
		stop  bool
		want  string
	}{
		"ends with its input":      {role{}, Grace{Stdin: time.Minute}, false, ""},
		"ends with SIGTERM":        {role{Stay: true}, Grace{Stdin: -1, Term: time.Minute}, false, "signal: terminated"},
		"ignores all":              {role{Stay: true, Deaf: true}, Grace{Stdin: -1, Term: -1}, false, "signal: killed"},
		"stopped, SIGTERM is seen": {role{Stay: true}, Grace{Stdin: -1, Term: time.Minute}, true, "signal: terminated"},
		"stopped and deaf":         {role{Stay: true, Deaf: true}, Grace{Stdin: -1, Term: -1}, true, "signal: killed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			kernels(t, func(t *testing.T, cgroup string, prepare func(*Group)) {
				g := newGroup(t, &Group{Cgroup: cgroup})
				prepare(g)
				p := start(t, g, &test.role)
				if test.stop {
					if err := unix.Kill(p.Process.PID(), unix.SIGSTOP); err != nil {
						t.Fatal(err)
					}
					await(t, "stopped", func() bool { s, _ := readStat(p.Process.PID()); return s.state == 'T' })
				}
				test.grace.Kill = time.Minute
				err := p.Terminate(t.Context(), test.grace)
				if got := text(err); got != test.want {
					t.Errorf("Terminate returned %q, want %q", got, test.want)
				}
			})
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestContextCutsTerminateShort(t *testing.T) {
	g := newGroup(t, &Group{})
	p := start(t, g, &role{Stay: true, Deaf: true})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Terminate(ctx, Grace{Stdin: time.Hour, Term: time.Hour, Kill: time.Minute}) }()
	cancel()
	if err := <-ended; text(err) != "signal: killed" {
		t.Errorf("Terminate returned %v", err)
	}
}

// All descendants end with the process, and its exit is noticed although they hold its pipes.
func TestLeftBehind(t *testing.T) {
	tests := map[string]struct{ child role }{
		"in the group":                  {child: role{Stay: true, Deaf: true}},
		"in the group, without pipes":   {child: role{Stay: true, Silent: true}},
		"left the group":                {child: role{Stay: true, Setsid: true}},
		"left the group, without pipes": {child: role{Stay: true, Setsid: true, Silent: true}},
		"grandchild that left":          {child: role{Leave: true, Children: []*role{{Stay: true, Setsid: true}}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			kernels(t, func(t *testing.T, cgroup string, prepare func(*Group)) {
				var reported atomic.Pointer[[]int]
				g := newGroup(t, &Group{Cgroup: cgroup, Leftover: func(_ *Process, pids []int) { reported.Store(&pids) }})
				prepare(g)
				p := start(t, g, &role{Children: []*role{&test.child}})
				all := p.everyone()
				if test.child.Leave {
					gone := all[1]
					await(t, "the child in between has gone", func() bool { s, ok := readStat(gone); return !ok || !s.alive() })
					all = slices.Delete(all, 1, 2)
				}
				ids := processes(t, all)
				begin := time.Now()
				if err := p.Terminate(t.Context(), Grace{Stdin: time.Minute}); err != nil {
					t.Errorf("Terminate returned %v", err)
				}
				t.Logf("seen after %v", time.Since(begin))
				awaitEnds(t, ids)
				left := reported.Load()
				if left == nil || !cmp.Equal(*left, all[1:]) {
					t.Errorf("reported %v, want %v", left, all[1:])
				}
			})
		})
	}
}

// SIGKILL is sent to the whole tree, including processes that left the group and have no pipe. Without cgroups they are found by their
// parents.
func TestKillTree(t *testing.T) {
	kernels(t, func(t *testing.T, cgroup string, prepare func(*Group)) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		prepare(g)
		p := start(t, g, &role{Stay: true, Deaf: true, Children: []*role{
			{Stay: true, Deaf: true, Setsid: true, Silent: true, Children: []*role{{Stay: true, Deaf: true, Setsid: true, Silent: true}}},
		}})
		ids := processes(t, p.everyone())
		if len(ids) != 3 {
			t.Fatalf("%d processes, want 3", len(ids))
		}
		if err := p.Terminate(t.Context(), Grace{Stdin: -1, Term: -1, Kill: time.Minute}); text(err) != "signal: killed" {
			t.Errorf("Terminate returned %v", err)
		}
		awaitEnds(t, ids)
	})
}

func TestOwns(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		p := start(t, g, &role{Children: []*role{{}, {Setsid: true, Children: []*role{{Setsid: true}}}}})
		other := start(t, g, &role{})
		for _, pid := range p.everyone() {
			if !p.Owns(pid) || other.Owns(pid) {
				t.Errorf("process %d of %v: owned %v, by another one %v", pid, p.everyone(), p.Owns(pid), other.Owns(pid))
			}
		}
		for _, pid := range []int{0, -1, 1, os.Getpid(), other.Process.PID(), 1 << 30} {
			if p.Owns(pid) {
				t.Errorf("owns the stranger %d", pid)
			}
		}
		_ = p.Terminate(t.Context(), Grace{})
		if p.Owns(p.Process.PID()) {
			t.Error("owns a process ID that may have passed on")
		}
	})
}

func TestFilesAreRemoved(t *testing.T) {
	g := newGroup(t, &Group{})
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(empty, "a file \"with\nquotes")
	p := start(t, g, &role{Create: file}, func(s *Spec) { s.Remove = []string{file, filepath.Join(dir, "never made"), empty, dir} })
	if _, err := os.Stat(file); err != nil {
		t.Fatal(err)
	}
	_ = p.Terminate(t.Context(), Grace{})
	if _, err := os.Stat(empty); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory with the file: %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the directory with another file: %v", err)
	}
}

// A process that is not a descendant holds the other end of standard output.
func TestOutputEnds(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		p, err := g.Start((&role{Say: "something"}).spec())
		if err != nil {
			t.Fatal(err)
		}
		holder, err := os.OpenFile("/proc/"+itoa(p.PID())+"/fd/1", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		if err := p.Terminate(t.Context(), Grace{Stdin: time.Minute}); err != nil {
			t.Error(err)
		}
		b, err := io.ReadAll(p.Stdout())
		if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(string(b), "something") {
			t.Errorf("read %q, %v", b, err)
		}
		if b, err := io.ReadAll(p.Stderr()); len(b) > 0 || err != nil {
			t.Errorf("read %q, %v", b, err)
		}
		_, _ = p.Stdout().Close(), p.Stderr().Close()
	})
}

func TestClose(t *testing.T) {
	kernels(t, func(t *testing.T, cgroup string, prepare func(*Group)) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		prepare(g)
		a, b := start(t, g, &role{}), start(t, g, &role{Stay: true, Deaf: true})
		watchdog := watchdogOf(t, os.Getpid())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 {
			if err := g.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		<-a.Done()
		<-b.Done()
		if _, err := g.Start((&role{}).spec()); !errors.Is(err, errClosed) {
			t.Errorf("Start after Close: %v", err)
		}
		if watchdog.there() {
			t.Error("the watchdog is still there")
		}
		if left := cgroups(t, os.Getpid()); len(left) > 0 {
			t.Errorf("cgroups are left: %v", left)
		}
	})
}

func TestCloseUnused(t *testing.T) {
	if err := newGroup(t, &Group{}).Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A process that is started while the group is being closed fails to start or is ended.
func TestCloseWhileStarting(t *testing.T) {
	for range 10 {
		g := newGroup(t, &Group{})
		var starting sync.WaitGroup
		for range 4 {
			starting.Go(func() {
				for {
					p, err := g.Start(Spec{Path: "/bin/sleep", Args: []string{"sleep", "60"}})
					if err != nil {
						if !errors.Is(err, errClosed) {
							t.Error(err)
						}
						return
					}
					_, _ = p.Stdout().Close(), p.Stderr().Close()
				}
			})
		}
		await(t, "something runs", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.procs) > 4 })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		starting.Wait()
	}
}
