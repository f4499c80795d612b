//go:build linux

package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// host is a host in its own process.
type host struct {
	cmd   *exec.Cmd
	stdin io.Closer
	procs []said
}

// startHost starts a host with processes, and waits for its line about them.
func startHost(t testing.TB, h hosting, roles ...*role) *host {
	t.Helper()
	for _, r := range roles {
		h.Procs = append(h.Procs, r.spec())
	}
	return startHostOf(t, h)
}

func startHostOf(t testing.TB, h hosting) *host {
	t.Helper()
	return startHostAs(t, h, &syscall.SysProcAttr{})
}

func startHostAs(t testing.TB, h hosting, as *syscall.SysProcAttr) *host {
	t.Helper()
	spec := (&role{Host: &h}).spec()
	cmd := exec.Command(spec.Path)
	cmd.Env, cmd.Stderr = spec.Env, os.Stderr
	as.Setpgid = !as.Setsid
	cmd.SysProcAttr = as
	stdin, err := cmd.StdinPipe() // open until Wait
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
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var s said
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return &host{cmd: cmd, stdin: stdin, procs: s.Children}
}

func (h *host) pid() int { return h.cmd.Process.Pid }

func (h *host) everyone(t testing.TB) []procID {
	var all []procID
	for _, p := range h.procs {
		all = append(all, processes(t, p.everyone())...)
	}
	return all
}

// kill kills the host with SIGKILL.
func (h *host) kill(t testing.TB) {
	t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.cmd.Wait()
}

// When the host is killed with SIGKILL, all processes and their descendants end, the files are removed, and the watchdog exits.
func TestHostIsKilled(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		file := filepath.Join(t.TempDir(), "socket")
		deaf := func(r role) *role { r.Stay, r.Deaf = true, true; return &r }
		tree := []*role{
			deaf(role{}), deaf(role{Silent: true}), deaf(role{Setsid: true}),
			{Leave: true, Children: []*role{deaf(role{Setsid: true})}},
		}
		tree = append(tree, deaf(role{Setsid: true, Silent: true, Children: []*role{deaf(role{Setsid: true, Silent: true})}}))
		procs := []Spec{deaf(role{Create: file, Children: tree}).spec(), deaf(role{}).spec()}
		procs[0].Remove = []string{file}
		h := startHostOf(t, hosting{Cgroup: cgroup, Procs: procs})
		watchdog := watchdogOf(t, h.pid())
		gone := h.procs[0].Children[3].PID
		await(t, "the child in between has gone", func() bool { s, ok := readStat(gone); return !ok || !s.alive() })
		h.procs[0].Children[3].PID = h.procs[0].PID
		all := h.everyone(t)
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
		h.kill(t)
		t.Logf("%d processes ended within %v", len(all), awaitEnds(t, all))
		awaitEnds(t, []procID{watchdog})
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file: %v", err)
		}
		if left := cgroups(t, h.pid()); len(left) > 0 {
			t.Errorf("cgroups are left: %v", left)
		}
	})
}

// Signals to the host, from its terminal or to its process group, do not reach the watchdog.
func TestHostsGroupIsSignalled(t *testing.T) {
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGHUP, unix.SIGTERM, unix.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			if signal.Ignored(sig) {
				notTested(t, "a host that this signal ends", "this process was started to ignore it, as by nohup")
			}
			h := startHost(t, hosting{}, &role{Stay: true, Deaf: true, Children: []*role{{Stay: true, Setsid: true}}})
			all, watchdog := h.everyone(t), watchdogOf(t, h.pid())
			if err := unix.Kill(-h.pid(), sig); err != nil {
				t.Fatal(err)
			}
			_ = h.cmd.Wait()
			awaitEnds(t, append(all, watchdog))
		})
	}
}

func TestWatchdogIgnoresSignals(t *testing.T) {
	h := startHost(t, hosting{}, &role{})
	watchdog := watchdogOf(t, h.pid())
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGHUP, unix.SIGTERM} {
		if err := unix.Kill(watchdog.pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	if !watchdog.there() {
		t.Error("it ended")
	}
	for _, fd := range pids("/proc/" + itoa(watchdog.pid) + "/fd") {
		target, _ := os.Readlink("/proc/" + itoa(watchdog.pid) + "/fd/" + itoa(fd))
		if fd > 2 && !strings.HasPrefix(target, "anon_inode:") && target != "" {
			t.Errorf("it holds descriptor %d: %s", fd, target)
		}
	}
	if dir, err := os.Readlink("/proc/" + itoa(watchdog.pid) + "/cwd"); dir != "/" {
		t.Errorf("its directory is %s, %v", dir, err)
	}
	all := h.everyone(t)
	h.kill(t)
	awaitEnds(t, append(all, watchdog))
}

// A watchdog that is killed, or does not read, is replaced by another one with all records.
func TestWatchdogIsReplaced(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		file := filepath.Join(t.TempDir(), "socket")
		spec := (&role{Stay: true, Deaf: true, Create: file, Children: []*role{{Stay: true, Deaf: true, Setsid: true}}}).spec()
		spec.Remove = []string{file}
		h := startHostOf(t, hosting{Cgroup: cgroup, Procs: []Spec{spec}})
		all := h.everyone(t)
		for range 3 {
			first := watchdogOf(t, h.pid())
			first.kill()
			awaitEnds(t, []procID{first})
		}
		second := watchdogOf(t, h.pid())
		for _, id := range all {
			if !id.there() {
				t.Errorf("process %d ended with the watchdog", id.pid)
			}
		}
		h.kill(t)
		awaitEnds(t, append(all, second))
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file: %v", err)
		}
	})
}

func TestStoppedWatchdogIsReplaced(t *testing.T) {
	var log lockedBuffer
	g := newGroup(t, &Group{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p := start(t, g, &role{})
	first := watchdogOf(t, os.Getpid())
	if err := unix.Kill(first.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1000); first.there(); i++ { // fills the pipe
		g.platform.guard.start(i, []string{"/" + strings.Repeat("x", 4000)}, nil)
		g.platform.guard.end(i)
	}
	if second := watchdogOf(t, os.Getpid()); second == first {
		t.Error("it is still the first")
	}
	if err := p.Terminate(t.Context(), Grace{}); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "being restarted") {
		t.Errorf("log: %s", log.String())
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A process ID that was reused by another process is never signaled.
func TestRecycledIDs(t *testing.T) {
	g := newGroup(t, &Group{})
	p := start(t, g, &role{})
	id := process(t, p.Process.PID())
	stale := procID{id.pid, id.start - 1}
	if stale.kill() {
		t.Error("killed by a stale ID")
	}
	if !id.there() {
		t.Fatal("the process is gone")
	}
}

func TestMany(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		cycles, atOnce := 50, 50
		if testing.Short() {
			cycles, atOnce = 10, 20
		}
		g := newGroup(t, &Group{Cgroup: cgroup})
		cycle := func() {
			p, err := g.Start(Spec{Path: "/bin/sleep", Args: []string{"sleep", "3600"}})
			if err != nil {
				t.Error(err)
				return
			}
			if err := p.Terminate(t.Context(), Grace{Stdin: -1, Term: 10 * time.Minute}); text(err) != "signal: terminated" {
				t.Errorf("Terminate returned %v", err)
			}
			_, _ = p.Stdout().Close(), p.Stderr().Close()
		}
		cycle()
		watchdog := watchdogOf(t, os.Getpid())
		before, watched := descriptors(t), len(pids("/proc/"+itoa(watchdog.pid)+"/fd"))
		begin := time.Now()
		for range cycles {
			cycle()
		}
		t.Logf("%d cycles in %v", cycles, time.Since(begin))
		begin = time.Now()
		var all sync.WaitGroup
		for range atOnce {
			all.Go(cycle)
		}
		all.Wait()
		t.Logf("%d at once in %v", atOnce, time.Since(begin))
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors, %d before", after, before)
		}
		await(t, "the watchdog has forgotten all", func() bool { return len(pids("/proc/"+itoa(watchdog.pid)+"/fd")) <= watched })
		for pid, s := range allStats() {
			if s.parent == os.Getpid() && pid != watchdog.pid {
				t.Errorf("child %d is left, state %c", pid, s.state)
			}
		}
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if left := cgroups(t, os.Getpid()); len(left) > 0 {
			t.Errorf("cgroups are left: %v", left)
		}
	})
}
