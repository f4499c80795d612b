package process

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/plugin"
)

// A program inherits attributes from the process and the thread that start it; docs/reference/inheritance.md lists them, with reasons.
// They are changed in four places: [Spec.attributes] and [startProgram] for each process, [resetThread] once for each thread that starts
// processes, and [resetAttributes] for attributes that only the process itself can change.

// resetThread resets attributes that programs inherit from this thread. The thread must be used only to start programs.
// Errors are ignored: they mean that the attribute does not exist on this system or that the host may not change it.
func resetThread() {
	// Ambient capabilities are for the host only, for example with AmbientCapabilities= of systemd.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) == nil && sets[0].Inheritable|sets[1].Inheritable != 0 {
		sets[0].Inheritable, sets[1].Inheritable = 0, 0
		_ = unix.Capset(&header, &sets[0])
	}
	// A program whose SIGTERM is blocked could only be killed.
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
	// A real-time policy or a negative nice value is for the host only. A positive nice value is inherited.
	if attr, err := unix.SchedGetAttr(0, 0); err == nil {
		attr.Flags |= unix.SCHED_FLAG_RESET_ON_FORK
		if attr.Policy != unix.SCHED_DEADLINE {
			attr.Runtime, attr.Deadline, attr.Period = 0, 0, 0 // otherwise the call would set them
		}
		_ = unix.SchedSetAttr(0, attr, 0)
	}
	const ofThread, classShift, realTime = 1, 13, 1 // ioprio_get(2)
	if priority, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ofThread, 0, 0); errno == 0 && priority>>classShift == realTime {
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ofThread, 0, 0)
	}
	// Reset the effect of setarch -R, predictable addresses.
	_, _, _ = unix.Syscall(unix.SYS_PERSONALITY, 0, 0, 0)
}

// startProgram starts a program on this thread, in cgroups of version 1.
func startProgram(what *Spec, v1 []string, attr *syscall.ProcAttr) (pid int, err error) {
	// Each process gets its own session keyring, so that it cannot use the keys of the host or of other processes.
	_, err = unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if what.User != nil && (errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOMEM)) {
		return 0, fmt.Errorf("make a session keyring for user %d: %w", what.User.UID, err)
	}
	// All other errors mean that keyrings are not available. A filter of system calls also applies to the program.
	err = runInGroups(v1, func() (err error) {
		pid, err = execute(what.Path, what.Args, attr)
		return err
	})
	return pid, err
}

// inherited are attributes of this process that a program inherits and that only the program's process can change.
type inherited struct {
	ignored   []syscall.Signal // ignored signals that package signal does not report
	umask     uint64
	protected bool // from being killed when there is no memory
}

// othersWrite is the bit of a umask that keeps other users from writing to new files.
const othersWrite = 0o002

func readInherited() (h inherited) {
	h.umask = othersWrite
	status, _ := os.ReadFile("/proc/self/status") // always there
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":\t"))
		switch string(key) {
		case "Umask":
			h.umask, _ = strconv.ParseUint(string(value), 8, 32)
		case "SigIgn":
			mask, _ := strconv.ParseUint(string(value), 16, 64)
			for sig := syscall.Signal(1); sig <= lastSignal; sig++ {
				if mask&(1<<(sig-1)) != 0 && !signal.Ignored(sig) {
					h.ignored = append(h.ignored, sig)
				}
			}
		}
	}
	score, _ := os.ReadFile(oomScore)
	h.protected = bytes.HasPrefix(score, []byte("-"))
	return h
}

const (
	lastSignal = syscall.Signal(64)
	oomScore   = "/proc/self/oom_score_adj"
)

// purpose returns why a process needs a shim, as a part of error messages. It is empty if the process needs none.
func (h *inherited) purpose(limits plugin.Limits) string {
	switch {
	case limits.OpenFiles > 0:
		return "to limit the open files"
	case h.umask&othersWrite == 0:
		return "to correct the umask"
	case h.protected:
		return "to correct the OOM score"
	case len(h.ignored) > 0:
		return "to reset ignored signals"
	}
	for sig := syscall.Signal(1); sig <= lastSignal; sig++ {
		if signal.Ignored(sig) {
			return "to reset ignored signals"
		}
	}
	return ""
}

// resetAttributes resets the attributes of this process, a shim, that the next program must not inherit.
func resetAttributes() {
	syscall.Umask(syscall.Umask(othersWrite) | othersWrite)
	if score, _ := os.ReadFile(oomScore); bytes.HasPrefix(score, []byte("-")) {
		_ = os.WriteFile(oomScore, []byte("0"), 0)
	}
	for sig := syscall.Signal(1); sig <= lastSignal; sig++ {
		var now, byDefault sigaction
		const ignore = 1
		if sigactionOf(sig, nil, &now) == 0 && now[0] == ignore {
			_ = sigactionOf(sig, &byDefault, nil) // a signal that can be ignored can be reset
		}
	}
}

// sigaction is struct sigaction of the kernel, whose mask has two words on a machine of 32 bits. The zero value stands for the default.
type sigaction [5]uintptr

// sigactionOf calls sigaction(2) without the knowledge of the Go runtime.
func sigactionOf(sig syscall.Signal, set, was *sigaction) syscall.Errno {
	const maskSize = 8
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(was)),
		maskSize, 0, 0)
	return errno
}

// A shim is a process that executes this program first and another one next. In between it limits its open files and resets the attributes
// that the other program must not inherit: only a process itself can change these, and it needs no rights for it.
type shim struct {
	path  string   // of the other program
	limit int      // of open files; 0 for none
	wire  *wire    // to the shim; it is closed when the shim executes the other program
	peer  *os.File // the shim's end of the wire
}

// shimThreads is how many threads a shim may have, in addition to the processes that the other program may have.
const shimThreads = 1000

// The messages of a shim: shimReady, after which it waits for one byte; or the step that failed, followed by the number of the error.
const shimReady, shimLimit, shimExecute = "ready", "limit", "execute"

// newShim changes spec so that it starts a shim, which executes its program. The wire will be its descriptor with the number files.
func newShim(spec *Spec, files int) (*shim, error) {
	own, peer, err := newWires()
	if err != nil {
		return nil, err
	}
	s := &shim{path: spec.Path, limit: spec.Limits.OpenFiles, wire: own, peer: peer}
	spec.Path, spec.Env = "/proc/self/exe", slices.Concat([]string{helperEnv + "=" + roleShim}, spec.Env)
	first := []string{helperName + roleShim, strconv.Itoa(s.limit), strconv.Itoa(files), s.path}
	spec.Args = slices.Concat(first, spec.Args)
	return s, nil
}

func (s *shim) close() {
	_ = s.wire.conn.Close()
	_ = s.peer.Close()
}

// execute waits until the shim is ready, calls limit, and makes the shim execute the other program.
func (s *shim) execute(limit func() error) error {
	// gofail: var processLimit string
	// return errors.New(processLimit)
	_ = s.peer.Close()
	what, err := s.receive()
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("the program that prepares the process ended before that; give it more memory if that is limited")
	case err == nil && what != shimReady:
		err = fmt.Errorf("%q instead of a confirmation that the process is prepared", what)
	}
	if err == nil {
		err = limit()
	}
	if err == nil {
		_, err = s.wire.conn.Write([]byte{0})
	}
	if err != nil {
		return err
	}
	if _, err = s.receive(); errors.Is(err, io.EOF) {
		return nil
	}
	return cmp.Or(err, errors.New("the program that prepares the process says more than it should"))
}

// receive returns the next message of the shim, or the error that it reports. Other processes of the same user may stop the shim, or write
// in its place.
func (s *shim) receive() (string, error) {
	const patience, most = 10 * time.Second, 64
	_ = s.wire.conn.SetReadDeadline(time.Now().Add(patience))
	said := make([]byte, most)
	n, err := s.wire.conn.Read(said)
	if err != nil {
		return "", fmt.Errorf("wait for the program that prepares the process: %w", err)
	}
	what, number, _ := strings.Cut(string(said[:n]), " ")
	switch errno, _ := strconv.ParseUint(number, 10, 16); {
	case errno == 0:
		return what, nil
	case what == shimLimit:
		return "", fmt.Errorf("limit the open files to %d: %w", s.limit, syscall.Errno(errno))
	default:
		return "", &os.PathError{Op: "fork/exec", Path: s.path, Err: syscall.Errno(errno)}
	}
}

// runShim prepares this process and executes a program. Args are the limit of open files, the descriptor of the wire to the host, the path
// of the program, and its arguments.
func runShim(args []string) {
	n, _ := strconv.ParseUint(args[0], 10, 64)
	host, _ := strconv.Atoi(args[1])
	syscall.CloseOnExec(host)
	report := func(what string, err error) {
		var errno syscall.Errno
		_ = errors.As(err, &errno)
		b := fmt.Appendf(nil, "%s %d", what, errno)
		_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(host), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	}
	if n > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			report(shimLimit, err)
			return
		}
	}
	resetAttributes()
	// The kernel clears the signal when it executes a program that has capabilities. If the host has ended already, the read below fails.
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	_ = os.Unsetenv(helperEnv)
	// After the message, the limit of processes may leave no room for another thread, which the runtime would start for the garbage
	// collector, for a call that blocks, and for another processor when this goroutine is preempted.
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(1)
	report(shimReady, nil)
	answer, got, errno := [1]byte{}, uintptr(0), unix.EINTR
	for errno == unix.EINTR {
		got, _, errno = syscall.RawSyscall(unix.SYS_READ, uintptr(host), uintptr(unsafe.Pointer(&answer)), uintptr(len(answer)))
	}
	if errno == 0 && got == 1 {
		report(shimExecute, syscall.Exec(args[2], args[3:], os.Environ())) //nolint:gosec // the host says what
	}
}
