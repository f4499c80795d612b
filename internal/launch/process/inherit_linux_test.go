package process

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestInheritedDescriptorsStay: descriptors that this process inherited are not open in the processes that it starts, whether they survive
// or not.
func TestInheritedDescriptorsStay(t *testing.T) {
	fd, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0) // without O_CLOEXEC, like a descriptor from a shell
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, survive := range map[string]bool{"Ends": false, "Survives": true} {
		t.Run(name, func(t *testing.T) {
			g := &Group{StateDir: t.TempDir()}
			p, err := g.Start(Spec{Name: "ls", Path: "/bin/ls", Args: []string{"ls", "-l", "/proc/self/fd"}, Survive: survive})
			if err != nil {
				t.Fatal(err)
			}
			listed, err := io.ReadAll(p.Stdout())
			if err != nil {
				t.Error(err)
			}
			if _, err := io.ReadAll(p.Stderr()); err != nil {
				t.Error(err)
			}
			<-p.Done()
			for line := range strings.Lines(string(listed)) {
				if strings.Contains(line, "/etc/passwd") {
					t.Errorf("the process has a descriptor that it was not meant to have: %s", line)
				}
			}
			if strings.Count(string(listed), "->") != 4 { // standard input, output and error, and the listed directory
				t.Errorf("the process has other descriptors:\n%s", listed)
			}
			if err := p.Stdout().Close(); err != nil {
				t.Error(err)
			}
			if err := p.Stderr().Close(); err != nil {
				t.Error(err)
			}
			if err := g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGraceIsFiveSeconds: by default, SIGKILL is sent 5 s after the request to end.
func TestGraceIsFiveSeconds(t *testing.T) {
	if g := (Grace{}).orDefault(); (g.Stdin + g.Term).Seconds() != 5 {
		t.Errorf("SIGKILL is sent after %v, want 5 s", g.Stdin+g.Term)
	}
}

const (
	// oddly starts a host with unusual attributes: the process changes all its attributes that it can and executes the host again.
	oddly = "oddly"
	// realtime is oddly with a real-time policy instead of a nice value.
	realtime = "realtime"
	// odd marks the host that was executed again.
	odd = "odd"

	secret = "patchbay-test-secret"
)

// become changes the attributes of this process and executes the host again. It never returns.
func (h *hosting) become() {
	runtime.LockOSThread()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	must(takeTerminal())
	root := os.Geteuid() == 0
	ignored := [4]uintptr{1} // SIG_IGN
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTSTP} {
		_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&ignored)), 0, 8, 0, 0)
		if errno != 0 {
			panic(errno)
		}
	}
	var blocked unix.Sigset_t
	blocked.Val[0] = 1<<(unix.SIGTERM-1) | 1<<(unix.SIGUSR2-1)
	must(unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, nil))
	unix.Umask(0)
	must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 512, Max: 1024}))
	must(unix.Prctl(unix.PR_SET_TIMERSLACK, 70_000, 0, 0, 0))
	_, _, errno := unix.Syscall(unix.SYS_PERSONALITY, 0x0040000, 0, 0) // ADDR_NO_RANDOMIZE
	if errno != 0 {
		panic(errno)
	}
	var first unix.CPUSet
	first.Set(0)
	must(unix.SchedSetaffinity(0, &first))
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err == nil {
		_, err = unix.AddKey("user", secret, []byte("of the host"), unix.KEY_SPEC_SESSION_KEYRING)
		must(err)
	}
	nice := niceValue()
	if root {
		nice = -5
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-300"), 0) // needs CAP_SYS_RESOURCE, which root may lack
		_, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, 1, 0, 1<<13|4) // IOPRIO_CLASS_RT
		if errno != 0 {
			panic(errno)
		}
		must(unix.Setgroups([]int{12321}))
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		must(unix.Capget(&header, &sets[0]))
		sets[0].Inheritable |= 1 << unix.CAP_NET_RAW
		must(unix.Capset(&header, &sets[0]))
		must(unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_RAW, 0, 0))
	}
	switch attr, err := unix.SchedGetAttr(0, 0); {
	case err != nil:
		panic(err)
	case h.Odd == realtime:
		attr.Policy, attr.Priority = unix.SCHED_RR, 1
		must(unix.SchedSetAttr(0, attr, 0))
	default:
		must(unix.Setpriority(unix.PRIO_PROCESS, 0, nice))
	}
	again := *h
	again.Odd = odd
	spec := (&role{Host: &again}).spec()
	panic(syscall.Exec(spec.Path, spec.Args, spec.Env))
}

// takeTerminal gives this process, a session leader, a controlling terminal: a new pty, whose two ends stay open until the process exits.
func takeTerminal() error {
	terminal, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(terminal, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	number, err := unix.IoctlGetInt(terminal, unix.TIOCGPTN)
	if err == nil {
		_, err = unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR, 0)
	}
	return err
}

// shows is a shell that prints its inherited attributes, and does not change them.
func shows() Spec {
	const script = `
exec 2>/dev/null
of() { while read key value; do [ "$key" = "$1:" ] && echo $value; done </proc/$$/status; }
read slack </proc/$$/timerslack_ns
stat=$(cat /proc/$$/stat)
set -- ${stat#*) }
tty=none
(: </dev/tty) && tty=some
session=its-own
[ $4 = $$ ] || session=another
group=its-own
[ $3 = $$ ] || group=another
printf '{"PID":%d,"Text":"' $$
for name in SigIgn SigBlk Umask CapInh CapAmb Groups Cpus_allowed; do
	printf '%s=%s;' $name "$(of $name)"
done
printf 'session=%s;group=%s;terminal=%s;tty=%s;nice=%s;policy=%s;' $session $group $5 $tty ${17} ${39}
printf 'oom=%s;personality=%s;slack=%s;files=%s/%s;' \
	$(cat /proc/$$/oom_score_adj) $(cat /proc/$$/personality) $slack $(ulimit -Sn) $(ulimit -Hn)
printf 'io=%s;dir=%s"}\n' "$(ionice -p $$)" $(pwd -P)
read end
`
	return Spec{Name: "shows", Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}
}

// lookForSecret is run by a process that looks for a key of its host.
func lookForSecret() string {
	_, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", secret, 0)
	return "key=" + text(err)
}

// TestInherited checks the list in docs/reference/inheritance.md, with a host that has unusual attributes.
func TestInherited(t *testing.T) {
	usual := map[string]string{
		"SigIgn": "0000000000000000", "SigBlk": "0000000000000000", "Umask": "0002", "CapInh": "0000000000000000", "CapAmb": "0000000000000000",
		"Groups": "", "Cpus_allowed": "1", "session": "its-own", "group": "its-own", "terminal": "0", "tty": "none", "nice": "0", "policy": "0",
		"oom": "0", "personality": "00000000", "slack": "70000", "files": "512/1024", "io": "none: prio 0", "dir": "/",
	}
	users := map[string]func(*testing.T) (*syscall.SysProcAttr, map[string]string){
		"root": func(t *testing.T) (*syscall.SysProcAttr, map[string]string) {
			needRoot(t)
			return &syscall.SysProcAttr{}, map[string]string{"Groups": "12321"}
		},
		"user": func(t *testing.T) (*syscall.SysProcAttr, map[string]string) {
			as := asNobody(t)
			return as, map[string]string{"nice": strconv.Itoa(niceValue())}
		},
	}
	for name, of := range users {
		for _, how := range []string{oddly, realtime} {
			modes(t, func(t *testing.T, cgroup string) {
				t.Run(name+", "+how, func(t *testing.T) {
					as, differs := of(t)
					if how == realtime && (name != "root" || !mayRealtime()) {
						t.Skip("this user may have no real-time policy here")
					}
					want := maps.Clone(usual)
					maps.Copy(want, differs)
					if how == realtime {
						want["slack"] = "0" // threads with a real-time policy have no slack
					}
					checkInherited(t, hosting{Cgroup: cgroup, Odd: how, Close: true}, as, want)
				})
			})
		}
	}
}

// niceValue returns a positive nice value that a process without rights can set: at least that of this process.
func niceValue() int {
	const least, zero = 5, 20 // what the system call returns for a nice value of 0
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		panic(err)
	}
	return max(least, zero-priority)
}

func mayRealtime() bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return false
	}
	attr := *before
	attr.Policy, attr.Priority = unix.SCHED_RR, 1
	if unix.SchedSetAttr(0, &attr, 0) != nil {
		return false
	}
	return unix.SchedSetAttr(0, before, 0) == nil
}

func checkInherited(t *testing.T, h hosting, as *syscall.SysProcAttr, want map[string]string) {
	t.Helper()
	as.Setsid = true
	h.StateDir = t.TempDir()
	root := as.Credential == nil
	if !root {
		for dir := h.StateDir; dir != os.TempDir() && dir != "/"; dir = dir[:strings.LastIndexByte(dir, '/')] {
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := func(s *Spec) { s.User = &User{UID: 12345, GID: 23456} }
	kinds := map[string][]func(*Spec){
		"own user": nil, "own user, survives": {survives}, "own user, limited": {func(s *Spec) { s.Limits.OpenFiles = 100 }},
		"other user": {other}, "other user, survives": {other, survives},
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(kinds)), func(name string) bool { return !root && strings.HasPrefix(name, "other") })
	for _, name := range names {
		for _, spec := range []Spec{shows(), (&role{Secret: true}).spec()} {
			spec.Dir = "/"
			for _, change := range kinds[name] {
				change(&spec)
			}
			h.Procs = append(h.Procs, spec)
		}
	}
	host := startHostAs(t, h, as)
	for i, name := range names {
		want := maps.Clone(want)
		if strings.HasPrefix(name, "other") {
			want["Groups"] = ""
		}
		if strings.HasSuffix(name, "limited") {
			want["files"] = "100/100"
		}
		shown := map[string]string{}
		for field := range strings.SplitSeq(host.procs[2*i].Text, ";") {
			key, value, _ := strings.Cut(field, "=")
			shown[key] = value
		}
		if diff := cmp.Diff(want, shown); diff != "" {
			t.Errorf("%s: what the process has inherited (-want +got):\n%s", name, diff)
		}
		if key := host.procs[2*i+1].Text; key != "key=required key not available" {
			t.Errorf("%s: the process finds a key of its host: %s", name, key)
		}
	}
	for i := range names {
		for _, p := range host.procs[2*i : 2*i+2] {
			if strings.HasSuffix(names[i], "survives") {
				process(t, p.PID).kill()
			}
		}
	}
}

func survives(s *Spec) { s.Survive = true }

// beOdd changes attributes that the host itself can change.
func beOdd() { signal.Ignore(unix.SIGPIPE, unix.SIGUSR1) }
