package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A program inherits from the process that starts it, or from the thread, whatever is not changed before. The page
// docs/reference/inheritance.md lists all of it, with the reasons. Attributes are changed in four places: in [Spec.attributes] and
// [startProgram] for each process, in [resetThread] once for each thread that starts processes, and in [shed] those that only the process
// itself can change.

// resetThread resets what the programs that this thread starts would inherit from it. The thread must be one that only starts programs.
// Errors are ignored: they mean that the attribute does not exist on this system or that the host may not change it.
func resetThread() {
	// The rights that the host was given for itself, as by AmbientCapabilities= of systemd.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) == nil && sets[0].Inheritable|sets[1].Inheritable != 0 {
		sets[0].Inheritable, sets[1].Inheritable = 0, 0
		_ = unix.Capset(&header, &sets[0])
	}
	// A program whose SIGTERM is blocked could only be killed.
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
	// A real-time policy or a negative nice value is the host's, a positive one is also that of what it starts.
	if attr, err := unix.SchedGetAttr(0, 0); err == nil {
		attr.Flags |= unix.SCHED_FLAG_RESET_ON_FORK
		if attr.Policy != unix.SCHED_DEADLINE {
			attr.Runtime, attr.Deadline, attr.Period = 0, 0, 0 // which would be set, too
		}
		_ = unix.SchedSetAttr(0, attr, 0)
	}
	const ofThread, classShift, realTime = 1, 13, 1 // ioprio_get(2)
	if priority, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ofThread, 0, 0); errno == 0 && priority>>classShift == realTime {
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ofThread, 0, 0)
	}
	// As of setarch -R: addresses that an attacker can predict.
	_, _, _ = unix.Syscall(unix.SYS_PERSONALITY, 0, 0, 0)
}

// startProgram starts a program on this thread, in cgroups of version 1.
func startProgram(what *Spec, v1 []string, attr *os.ProcAttr) (proc *os.Process, err error) {
	// The keys in the session keyring of the host are not for what it starts, nor those of one process for another.
	_, err = unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if what.User != nil && (errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOMEM)) {
		return nil, fmt.Errorf("make a session keyring for user %d: %w", what.User.UID, err)
	}
	// All other errors mean that there are no keyrings here: a filter of system calls that refuses them refuses them to the program, too.
	err = within(v1, func() (err error) {
		proc, err = startChild(func() (*os.Process, error) { return os.StartProcess(what.Path, what.Args, attr) })
		return err
	})
	return proc, err
}

// heirlooms are those attributes of this process that a program inherits and that only its own process can change. They are read once.
type heirlooms struct {
	ignored   []syscall.Signal // that are ignored although Go knows nothing of it
	umask     uint64
	protected bool // from being killed when there is no memory
}

// othersWrite is the bit of a umask without which files are made that everybody may write to.
const othersWrite = 0o002

func readHeirlooms() (h heirlooms) {
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

// purpose returns what a shim is needed for to start a process; empty if it needs none.
func (h *heirlooms) purpose(limits Limits) string {
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

// shed changes what this process, which is a shim, has inherited.
func shed() {
	syscall.Umask(syscall.Umask(othersWrite) | othersWrite)
	if score, _ := os.ReadFile(oomScore); bytes.HasPrefix(score, []byte("-")) {
		_ = os.WriteFile(oomScore, []byte("0"), 0)
	}
	for sig := syscall.Signal(1); sig <= lastSignal; sig++ {
		var now, byDefault sigaction
		const ignore = 1
		if sigactionOf(sig, nil, &now) == 0 && now[0] == ignore {
			sigactionOf(sig, &byDefault, nil)
		}
	}
}

// sigaction is struct sigaction of the kernel: a handler, flags, a restorer and a mask. The zero one stands for the default.
type sigaction [4]uintptr

// sigactionOf is sigaction(2), which the runtime does not know of.
func sigactionOf(sig syscall.Signal, set, was *sigaction) syscall.Errno {
	const maskSize = 8
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(was)),
		maskSize, 0, 0)
	return errno
}
