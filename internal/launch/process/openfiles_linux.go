package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitOpenFiles bounds the descriptors of a process, which is stopped and runs as the user, if there is one.
func limitOpenFiles(pid int, as *User, n uint64) error {
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}, nil)
	if errors.Is(err, unix.EPERM) && as != nil {
		err = limitAs(pid, as, n)
	}
	if err != nil {
		return fmt.Errorf("limit the open files to %d: %w", n, err)
	}
	return nil
}

// limitAs has the user limit the process: in a container root often may not (CAP_SYS_RESOURCE). What a process of that user reports is not
// believed.
func limitAs(pid int, as *User, n uint64) error {
	want := strconv.FormatUint(n, 10)
	proc, err := os.StartProcess("/proc/self/exe", []string{helperName + roleLimiter, strconv.Itoa(pid), want}, &os.ProcAttr{
		Env:   []string{helperEnv + "=" + roleLimiter, "GOMAXPROCS=1"},
		Files: []*os.File{nil, nil, nil},
		Sys:   &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: as.UID, Gid: as.GID}, Pdeathsig: syscall.SIGKILL, Setpgid: true},
	})
	if err != nil {
		return err
	}
	// Others of the user's processes can stop it, and no other process starts meanwhile.
	const patience = 5 * time.Second
	defer time.AfterFunc(patience, func() { _ = proc.Kill() }).Stop()
	if _, err := proc.Wait(); err != nil {
		return err
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(b) {
		if values, ok := strings.CutPrefix(string(line), "Max open files"); ok {
			if f := strings.Fields(values); len(f) >= 2 && f[0] == want && f[1] == want {
				return nil
			}
		}
	}
	return unix.EPERM
}

// runLimiter is the whole life of the process that limits another one of its user.
func runLimiter(args []string) {
	if len(args) != 2 {
		return
	}
	pid, _ := strconv.Atoi(args[0])
	n, err := strconv.ParseUint(args[1], 10, 64)
	if pid > 0 && err == nil {
		// Whoever started this looks at the result.
		_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}, nil)
	}
}
