//go:build linux

package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// roleEnv has the role of the test binary when it is executed again.
const roleEnv = "PROCESS_TEST_ROLE"

// role is the behavior of a child in a test.
type role struct {
	Say      string   // is written to standard output first
	Echo     bool     // writes the first line of its standard input to standard output
	Deaf     bool     // ignores SIGTERM
	Stay     bool     // does not end with its standard input
	Exit     int      // the status with which it ends
	Children []*role  // are started before it says anything; their IDs are in what it says
	Setsid   bool     // leaves the process group
	Silent   bool     // has no descriptors of its parent
	Leave    bool     // exits immediately, and leaves its children
	Create   string   // a file that it makes
	Secret   bool     // says whether it finds a key of its host
	Host     *hosting // it is a host
}

// hosting is the behavior of a host, which starts a process for each role.
type hosting struct {
	Cgroup, StateDir string
	Procs            []Spec
	Remove           []string
	Close            bool // closes the group at the end of its standard input, and ends
	Adopt            bool
	Odd              string // how an unusual parent has started it
	First            bool   // it is the first process of a PID namespace, and calls ReapAdopted
}

// said is the line that a child prints.
type said struct {
	PID      int
	Children []said
	Text     string
}

func TestMain(m *testing.M) {
	b := os.Getenv(roleEnv)
	if b == "" {
		leaktest.Main(m)
		return
	}
	var r role
	if err := json.Unmarshal([]byte(b), &r); err != nil {
		panic(err)
	}
	r.play()
}

func (r *role) play() {
	if r.Deaf {
		signal.Ignore(unix.SIGTERM)
	}
	line := said{PID: os.Getpid(), Text: r.Say}
	stdin := bufio.NewReader(os.Stdin)
	if r.Echo {
		line.Text, _ = stdin.ReadString('\n')
	}
	if r.Create != "" {
		_ = os.WriteFile(r.Create, nil, 0o600)
	}
	if r.Secret {
		line.Text = lookForSecret()
	}
	for _, child := range r.Children {
		line.Children = append(line.Children, child.startAsGrandchild())
	}
	var g *Group
	if r.Host != nil {
		g = r.Host.start(&line)
	}
	b, _ := json.Marshal(line)
	fmt.Println(string(b))
	if r.Leave {
		os.Exit(r.Exit)
	}
	_, _ = io.Copy(io.Discard, stdin)
	if r.Stay {
		<-time.After(time.Minute) // ends processes that a failed test leaves behind
	}
	if r.Host != nil && r.Host.Close {
		if err := g.Close(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(r.Exit)
}

// startAsGrandchild starts a child of the child, and waits for its line.
func (r *role) startAsGrandchild() said {
	spec := r.spec()
	cmd := exec.Command(spec.Path)
	cmd.Env = spec.Env
	report, theirs, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	in, _, err := os.Pipe() // stays open as long as this process
	if err != nil {
		panic(err)
	}
	cmd.Stdin, cmd.Stdout = in, theirs
	if !r.Silent {
		cmd.Stderr = os.Stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: r.Setsid}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	_ = theirs.Close()
	var s said
	if err := json.NewDecoder(report).Decode(&s); err != nil {
		panic(err)
	}
	return s
}

func (h *hosting) start(line *said) *Group {
	switch h.Odd {
	case oddly, realtime:
		h.become()
	case odd:
		beOdd()
	}
	if h.First {
		beFirst()
	}
	g := &Group{Cgroup: h.Cgroup, StateDir: h.StateDir}
	early := h.Remove[:len(h.Remove)/2]
	g.Remove(early...)
	say := func(p *Process, adopted bool) {
		go func() { _, _ = io.Copy(os.Stderr, p.Stderr()) }()
		s := said{PID: p.PID()}
		if !adopted {
			r := bufio.NewReader(p.Stdout())
			_ = json.NewDecoder(r).Decode(&s)
		}
		go func() { _, _ = io.Copy(io.Discard, p.Stdout()) }()
		line.Children = append(line.Children, s)
	}
	for _, spec := range h.Procs {
		p, err := g.Start(spec)
		if err != nil {
			panic(err)
		}
		say(p, false)
	}
	if h.Adopt {
		procs, err := g.Adopt(context.Background())
		if err != nil {
			panic(err)
		}
		for _, p := range procs {
			say(p, true)
		}
	}
	g.Remove(h.Remove[len(early):]...)
	return g
}

// spec returns the Spec with which the role is started.
func (r *role) spec() Spec {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return Spec{Name: "test", Path: "/proc/self/exe", Args: []string{"child"}, Env: []string{roleEnv + "=" + string(b), "GORACE=atexit_sleep_ms=10"}}
}

// everyone returns the IDs of all processes in a line.
func (s said) everyone() []int {
	all := []int{s.PID}
	for _, child := range s.Children {
		all = append(all, child.everyone()...)
	}
	return all
}

func newGroup(t testing.TB, g *Group) *Group {
	t.Helper()
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return g
}

// started is a running process whose output is read.
type started struct {
	*Process
	said
	rest chan string // gets the rest of the standard output at its end
}

// start starts the role and waits for its line.
func start(t testing.TB, g *Group, r *role, more ...func(*Spec)) started {
	t.Helper()
	spec := r.spec()
	for _, f := range more {
		f(&spec)
	}
	p, err := g.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	return listen(t, p)
}

func listen(t testing.TB, p *Process) started {
	t.Helper()
	s := started{Process: p, rest: make(chan string, 1)}
	out := bufio.NewReader(p.Stdout())
	line, err := out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.said)
	}
	if err != nil {
		t.Errorf("what the child says: %v: %q", err, line)
	}
	errs := make(chan struct{})
	go func() {
		defer close(errs)
		_, _ = io.Copy(os.Stderr, p.Stderr())
		_ = p.Stderr().Close()
	}()
	go func() {
		b, _ := io.ReadAll(out)
		_ = p.Stdout().Close()
		<-errs
		s.rest <- string(b)
	}()
	t.Cleanup(func() {
		_ = p.Terminate(context.Background(), Grace{Stdin: -1, Term: -1})
		rest := <-s.rest
		s.rest <- rest
	})
	return s
}

// process returns the identity of a running process.
func process(t testing.TB, pid int) procID {
	t.Helper()
	s, ok := readStat(pid)
	if !ok || !s.alive() {
		t.Fatalf("process %d is not there", pid)
	}
	return procID{pid, s.start}
}

func processes(t testing.TB, list []int) []procID {
	t.Helper()
	ids := make([]procID, len(list))
	for i, pid := range list {
		ids[i] = process(t, pid)
	}
	return ids
}

// there reports whether the process exists and is not a zombie.
func (id procID) there() bool {
	s, ok := readStat(id.pid)
	return ok && s.start == id.start && s.alive()
}

// awaitEnds waits until all the processes have ended, and reports how long that took.
func awaitEnds(t testing.TB, ids []procID) time.Duration {
	t.Helper()
	begin := time.Now()
	for _, id := range ids {
		pidfd, err := id.open()
		if err != nil {
			continue
		}
		const patience = 2 * time.Minute
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(fds, int((patience - time.Since(begin)).Milliseconds()))
			if err == unix.EINTR {
				continue
			}
			if n != 1 && id.there() {
				cmdline, _ := os.ReadFile("/proc/" + strconv.Itoa(id.pid) + "/cmdline")
				t.Errorf("process %d is still there: %q", id.pid, cmdline)
				id.kill()
			}
			break
		}
		_ = unix.Close(pidfd)
	}
	return time.Since(begin)
}

// await polls until a condition is true.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited for: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// cgroups lists the cgroups that this process, or the given one, has created for its processes.
func cgroups(t testing.TB, pid int) []string {
	t.Helper()
	system, err := cgroupfs.Self()
	if err != nil || system.Unified == nil {
		notTested(t, "cgroups of version 2", err)
	}
	own, err := system.Unified.Dir()
	if err != nil {
		notTested(t, "cgroups of version 2", err)
	}
	entries, err := os.ReadDir(own)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "patchbay-"+strconv.Itoa(pid)+"-") {
			names = append(names, entry.Name())
		}
	}
	return names
}

// modes runs the test with a cgroup for each process, if cgroups are available, and without cgroups.
func modes(t *testing.T, f func(t *testing.T, cgroup string)) {
	t.Run("cgroup", func(t *testing.T) {
		needCgroup(t)
		f(t, "")
	})
	t.Run("no cgroup", func(t *testing.T) { f(t, noCgroup) })
}

// kernels runs the test as modes does, and also without the system calls of Linux 6.9.
func kernels(t *testing.T, f func(t *testing.T, cgroup string, prepare func(*Group))) {
	modes(t, func(t *testing.T, cgroup string) { f(t, cgroup, func(*Group) {}) })
	t.Run("cgroup, before Linux 6.9", func(t *testing.T) {
		needCgroup(t)
		f(t, "", func(g *Group) { g.platform.noGroups = true })
	})
}

func needCgroup(t testing.TB) {
	t.Helper()
	c, err := newCgroup("")
	if err != nil {
		notTested(t, "processes in cgroups of version 2", err)
	}
	if err := c.remove(); err != nil {
		t.Fatal(err)
	}
}

// watchdogOf returns the watchdog of a host.
func watchdogOf(t testing.TB, host int) procID {
	t.Helper()
	var found procID
	await(t, "a watchdog", func() bool {
		for pid, s := range allStats() {
			comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
			if err == nil && s.parent == host && s.alive() && strings.HasPrefix(string(comm), helperName+roleWatchdog) {
				found = procID{pid, s.start}
				return true
			}
		}
		return false
	})
	return found
}

// reads returns a Stdin function for a fixed input.
func reads(input []byte) func() ([]byte, error) { return func() ([]byte, error) { return input, nil } }
