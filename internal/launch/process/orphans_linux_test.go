package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
)

const (
	manyOrphans = 200
	// nobody is a user without rights.
	nobody = 65534
)

// orphaning is a process that starts many orphans: they fork twice, leave the session, and have no descriptors. They are found by the
// argument of sleep.
func orphaning(mark string) Spec {
	script := fmt.Sprintf(`i=0
while [ $i -lt %d ]; do
	(setsid /bin/sh -c '(exec sleep %s <&- >&- 2>&-) &' <&- >&- 2>&- &)
	i=$((i+1))
done
trap '' TERM
echo '{"PID":'$$'}'
read line`, manyOrphans, mark)
	return Spec{Name: "test", Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")}}
}

// asleep returns the processes that run sleep with the mark.
func asleep(mark string) (found []procID) {
	for pid, s := range allStats() {
		cmdline, err := os.ReadFile("/proc/" + itoa(pid) + "/cmdline")
		if err == nil && s.alive() && bytes.Equal(cmdline, []byte("sleep\x00"+mark+"\x00")) {
			found = append(found, procID{pid, s.start})
		}
	}
	return found
}

// TestNoOrphan: no descendant outlives the plugin or the host, even if it left the process group.
func TestNoOrphan(t *testing.T) {
	kinds := map[string]func(t *testing.T) (cgroup string, as *syscall.SysProcAttr){
		"root, cgroup": func(t *testing.T) (string, *syscall.SysProcAttr) {
			needCgroup(t)
			return "", &syscall.SysProcAttr{}
		},
		"root, no cgroup": func(*testing.T) (string, *syscall.SysProcAttr) { return noCgroup, &syscall.SysProcAttr{} },
		"user, cgroup":    inDelegatedCgroup,
		"user, no cgroup": func(t *testing.T) (string, *syscall.SysProcAttr) { return noCgroup, asNobody(t) },
	}
	ends := map[string]func(t *testing.T, h *host){
		"stop": func(t *testing.T, h *host) { _ = h.stdin.Close() },
		"kill": func(t *testing.T, h *host) { h.kill(t) },
		"kill of the process": func(t *testing.T, h *host) { // the process exits, and the host kills the orphans
			s, ok := readStat(h.procs[0].PID)
			if !ok || !(procID{h.procs[0].PID, s.start}).kill() {
				t.Error("it is not there")
			}
		},
	}
	mark := 0
	for kind, prepare := range kinds {
		for how, end := range ends {
			mark++
			sleeps := fmt.Sprintf("%d.%d", os.Getpid()+1000, mark)
			t.Run(kind+", "+how, func(t *testing.T) {
				cgroup, as := prepare(t)
				h := startHostAs(t, hosting{Cgroup: cgroup, Procs: []Spec{orphaning(sleeps)}, Close: true}, as)
				await(t, "all of them", func() bool { return len(asleep(sleeps)) == manyOrphans })
				all := append(asleep(sleeps), process(t, h.procs[0].PID))
				end(t, h)
				t.Logf("%d ended within %v", len(all), awaitEnds(t, all))
				if left := asleep(sleeps); len(left) > 0 {
					t.Errorf("%d are left", len(left))
				}
			})
		}
	}
}

// TestReaperIsKilled: if the reaper is killed, the process ends with it, and the error has the reason.
func TestReaperIsKilled(t *testing.T) {
	g := newGroup(t, &Group{Cgroup: noCgroup})
	p := start(t, g, &role{Stay: true, Deaf: true, Children: []*role{{Stay: true, Deaf: true}}})
	all := processes(t, p.everyone())
	s, _ := readStat(p.Process.PID())
	if comm, err := os.ReadFile("/proc/" + itoa(s.parent) + "/comm"); !strings.HasPrefix(string(comm), helperName+roleReaper) {
		t.Fatalf("its parent is %q, %v", comm, err)
	}
	process(t, s.parent).kill()
	<-p.Done()
	awaitEnds(t, all)
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "reaper of the process was killed: signal: killed") {
		t.Error(err)
	}
}

// TestNoOrphanOfAKilledReaper: whichever of the two reapers is killed, no descendant of the process is left.
func TestNoOrphanOfAKilledReaper(t *testing.T) {
	for which, sought := range map[string]func(inner procStat, pid int) int{
		"inner": func(_ procStat, pid int) int { return pid },
		"outer": func(inner procStat, _ int) int { return inner.parent },
	} {
		t.Run(which, func(t *testing.T) {
			sleeps := fmt.Sprintf("%d.%s", os.Getpid()+1000, map[string]string{"inner": "8", "outer": "9"}[which])
			h := startHostAs(t, hosting{Cgroup: noCgroup, Procs: []Spec{orphaning(sleeps)}, Close: true}, &syscall.SysProcAttr{})
			await(t, "all of them", func() bool { return len(asleep(sleeps)) == manyOrphans })
			all := append(asleep(sleeps), process(t, h.procs[0].PID))
			program, _ := readStat(h.procs[0].PID)
			inner, _ := readStat(program.parent)
			reaper := process(t, sought(inner, program.parent))
			if comm, err := os.ReadFile("/proc/" + itoa(reaper.pid) + "/comm"); !strings.HasPrefix(string(comm), helperName+roleReaper) {
				t.Fatalf("it is %q, %v", comm, err)
			}
			reaper.kill()
			t.Logf("%d ended within %v", len(all), awaitEnds(t, all))
			_ = h.stdin.Close()
		})
	}
}

// TestStoppedReaper: both stopped reapers are continued when the process is terminated.
func TestStoppedReaper(t *testing.T) {
	g := newGroup(t, &Group{Cgroup: noCgroup})
	p := start(t, g, &role{Stay: true, Deaf: true, Children: []*role{{Stay: true, Deaf: true, Setsid: true, Silent: true}}})
	all := processes(t, p.everyone())
	s, _ := readStat(p.Process.PID())
	inner, _ := readStat(s.parent)
	if err := errors.Join(unix.Kill(s.parent, unix.SIGSTOP), unix.Kill(inner.parent, unix.SIGSTOP)); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(t.Context(), Grace{Stdin: -1, Term: -1}); text(err) != "signal: killed" {
		t.Error(err)
	}
	awaitEnds(t, all)
}

func asNobody(t *testing.T) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		notTested(t, "a host of another user", "this is not root")
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// inDelegatedCgroup creates a cgroup that is delegated to a user without rights, and returns it with the attributes of a host in it.
func inDelegatedCgroup(t *testing.T) (string, *syscall.SysProcAttr) {
	as := asNobody(t)
	needCgroup(t)
	system, err := cgroupfs.Self()
	if err != nil {
		t.Fatal(err)
	}
	own, err := system.Unified.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(own, fmt.Sprintf("test-%d", os.Getpid()))
	within := filepath.Join(dir, "host")
	for _, d := range []string{dir, within} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(d, file), nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	}
	opened, err := os.Open(within)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = opened.Close()
		if err := (cgroup{dir: dir}).clear(leafGrace); err != nil {
			t.Error(err)
		}
	})
	as.UseCgroupFD, as.CgroupFD = true, int(opened.Fd())
	return dir, as
}

// TestSpareLeaf: the cgroup of the next process is created in advance, and another program may have removed it before it is used.
func TestSpareLeaf(t *testing.T) {
	g := newGroup(t, &Group{})
	leafOf := func(p started) string {
		t.Helper()
		leaf := p.body.(*child).leaf
		if leaf == nil || !leaf.holds(p.Process.PID()) {
			t.Fatalf("process %d is not in its cgroup %v", p.Process.PID(), leaf)
		}
		return leaf.dir
	}
	spare := func() string {
		t.Helper()
		g.platform.leaves.Wait()
		leaf := g.platform.spare.Load()
		if leaf == nil || unix.Access(leaf.dir, unix.F_OK) != nil {
			t.Fatalf("the spare cgroup is %v", leaf)
		}
		return leaf.dir
	}
	first := start(t, g, &role{})
	if g.platform.cgroup == nil {
		t.Skip("no cgroup for processes")
	}
	had := map[string]bool{leafOf(first): true}
	next := spare()
	if second := leafOf(start(t, g, &role{})); second != next {
		t.Errorf("the second process is in %s, want the spare %s", second, next)
	}
	had[next] = true

	next = spare()
	if err := os.Remove(next); err != nil {
		t.Fatal(err)
	}
	if third := leafOf(start(t, g, &role{})); had[third] || third == next {
		t.Errorf("the third process is in %s, which was removed or is another's", third)
	} else {
		had[third] = true
	}

	var starting sync.WaitGroup
	var procs [8]*Process
	var errs [len(procs)]error
	for i := range procs {
		starting.Go(func() { procs[i], errs[i] = g.Start((&role{}).spec()) })
	}
	starting.Wait()
	for i, p := range procs {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		leaf := leafOf(listen(t, p))
		if had[leaf] {
			t.Errorf("two processes are in %s", leaf)
		}
		had[leaf] = true
	}
	spare()
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(g.platform.cgroup.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup of the host is left: %v", err)
	}
}

// beFirst mounts /proc for this process, the first one of a PID namespace, and reaps the processes that it adopts.
func beFirst() {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		panic(err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		panic(err)
	}
	go ReapAdopted(context.Background())
}

// TestOnlyAdoptedAreReaped: only adopted processes are reaped; the exit status of a started process is kept for its waiter.
func TestOnlyAdoptedAreReaped(t *testing.T) {
	args := []string{"sh", "-c", "exit 3"}
	own, err := execute("/bin/sh", args, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := os.StartProcess("/bin/sh", args, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer adopted.Release()
	await(t, "both are zombies", func() bool {
		a, okA := readStat(own)
		b, okB := readStat(adopted.Pid)
		return okA && okB && !a.alive() && !b.alive()
	})
	reapAdopted()
	if _, ok := readStat(adopted.Pid); ok {
		t.Error("a process that was not started here is still a zombie")
	}
	state, err := exit{pid: own}.wait()
	if err != nil || state.ExitCode() != 3 {
		t.Errorf("the process that was started here ended with %v, %v, want status 3", state, err)
	}
}

// TestAdoptedAreReaped: a host that is the first process of a container reaps the orphans of its processes.
func TestAdoptedAreReaped(t *testing.T) {
	needRoot(t)
	modes(t, func(t *testing.T, cgroup string) {
		left := &role{Children: []*role{{Setsid: true, Silent: true, Stay: true}}, Leave: true, Exit: 3}
		stays := &role{}
		as := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
		h := hosting{Cgroup: cgroup, First: true}
		for range 5 {
			h.Procs = append(h.Procs, left.spec())
		}
		h.Procs = append(h.Procs, stays.spec())
		host := startHostAs(t, h, as)
		await(t, "a host with two children: its watchdog and the process that runs, or the reaper of that", func() bool {
			return countChildren(host.pid()) == 2
		})
	})
}

// TestChildWithAReusedID: a started process with the ID of a process that was just reaped is not taken for an adopted one.
func TestChildWithAReusedID(t *testing.T) {
	const id = 1 << 30 // no process has it
	start := func() {
		if _, err := startChild(func() (int, error) { return id, nil }); err != nil {
			t.Fatal(err)
		}
	}
	isKnown := func() bool {
		children.mu.Lock()
		defer children.mu.Unlock()
		_, known := children.started[id]
		return known
	}
	start()
	start() // the first process was reaped, and forgetChild was not called yet
	if forgetChild(id); !isKnown() {
		t.Error("the second process is forgotten with the first")
	}
	if forgetChild(id); isKnown() {
		t.Error("a process that was waited for is not forgotten")
	}
}

// countChildren returns how many processes have this parent, zombies included.
func countChildren(parent int) (n int) {
	for _, s := range allStats() {
		if s.parent == parent {
			n++
		}
	}
	return n
}
