package process

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shim starts a program whose process has to be prepared: as this program, which limits its own open files and changes what else it must
// not inherit, and then executes the other. Only a process itself can do that before the first instruction of its program, and it needs no
// right for it.
type shim struct {
	path  string   // of the other
	limit int      // of open files; 0 for none
	wire  *wire    // to the program that prepares itself; it ends when the other is executed
	peer  *os.File // the other end of it
}

// shimThreads is how many threads this program may need to prepare itself, beyond the processes that the other may have.
const shimThreads = 1000

// What a program that prepares itself says: that it has done so, and then waits for a byte; or in what it failed, and the error's number.
const shimReady, shimLimit, shimExecute = "ready", "limit", "execute"

// newShim has the description of the other program be that of this one, which gets the other end of the wire after so many files.
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

// execute waits until the program has prepared itself, calls limit, and has it execute the other.
func (s *shim) execute(limit func() error) error {
	// gofail: var processLimit string
	// return errors.New(processLimit)
	_ = s.peer.Close()
	what, err := s.hear()
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
	if _, err = s.hear(); errors.Is(err, io.EOF) {
		return nil
	}
	return cmp.Or(err, errors.New("the program that prepares the process says more than it should"))
}

// hear returns what the program says, or the error that it met. Other processes of its user may stop it, or speak for it.
func (s *shim) hear() (string, error) {
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

// runShim becomes the program in args, which follows the limit of open files and the descriptor by which the host is told.
func runShim(args []string) {
	n, _ := strconv.ParseUint(args[0], 10, 64)
	host, _ := strconv.Atoi(args[1])
	syscall.CloseOnExec(host)
	tell := func(what string, err error) {
		var errno syscall.Errno
		_ = errors.As(err, &errno)
		b := fmt.Appendf(nil, "%s %d", what, errno)
		_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(host), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	}
	if n > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			tell(shimLimit, err)
			return
		}
	}
	shed()
	// It was lost if this program has capabilities of its own. Whoever is gone already does not answer.
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	_ = os.Unsetenv(helperEnv)
	// As soon as the host is told there may be no room for another thread, which the collector wants, the runtime for a call that blocks, and
	// for another processor when this goroutine was preempted.
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(1)
	tell(shimReady, nil)
	answer, got, errno := [1]byte{}, uintptr(0), unix.EINTR
	for errno == unix.EINTR {
		got, _, errno = syscall.RawSyscall(unix.SYS_READ, uintptr(host), uintptr(unsafe.Pointer(&answer)), uintptr(len(answer)))
	}
	if errno == 0 && got == 1 {
		tell(shimExecute, syscall.Exec(args[2], args[3:], os.Environ())) //nolint:gosec // the host says what
	}
}
