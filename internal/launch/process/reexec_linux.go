package process

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Helpers are the program of the host, executed again under a name that nobody else uses, and with a variable in the environment; see
// docs/adr/0007.
// The name does not contain that of the host, so that whoever kills by name kills the host only.
const (
	helperName = "plugin-" // followed by the role
	helperEnv  = "PATCHBAY_PROCESS_HELPER"
)

const (
	roleWatchdog = "watchdog"
	roleKeeper   = "keeper"
	roleLauncher = "launcher" // starts a keeper and ends, so that the keeper is nobody's child
	roleBounded  = "bounded"  // limits its own open files and becomes the program of a process
)

// Before main: that of the host must not run again, and not even its flags be parsed.
func init() { //nolint:gochecknoinits // docs/adr/0007
	if len(os.Args) == 0 {
		return
	}
	role, ok := strings.CutPrefix(os.Args[0], helperName)
	if !ok || os.Getenv(helperEnv) != role {
		return
	}
	if role == roleBounded { // which keeps its descriptors
		runBounded(os.Args[1:])
		syscall.Exit(1)
	}
	settle(role)
	switch role {
	case roleWatchdog:
		runWatchdog()
	case roleKeeper:
		runKeeper()
	case roleLauncher:
		if _, _, err := startHelper(roleKeeper, os.NewFile(0, "host")); err != nil {
			syscall.Exit(1)
		}
	}
	syscall.Exit(0) // not os.Exit: its hooks are those of the host's program
}

// settle makes this process independent of the one that started it: of its directory, of its descriptors but the first three, and of the
// signals that are meant for it.
func settle(role string) {
	_ = os.Chdir("/")
	for _, fd := range pids("/proc/self/fd") {
		// The host may have had descriptors that are inherited. The runtime's own are not, and must not be closed.
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && fd > syscall.Stderr && !strings.HasPrefix(target, "anon_inode:") {
			_ = unix.Close(fd)
		}
	}
	// Caught and not ignored: a program that is executed later would ignore them too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	_ = os.WriteFile("/proc/self/comm", []byte(helperName+role), 0) // for ps and top, which otherwise show "exe"
}

// startHelper starts this program again in a role, in a session of its own, with stdin as its only descriptor. It outlives this process.
func startHelper(role string, stdin *os.File) (*os.Process, exit, error) {
	// gofail: var processWatchdog string
	// return nil, exit{}, fmt.Errorf("execute this program again as %s: %s", helperName+role, processWatchdog)
	pidfd := -1
	proc, err := os.StartProcess("/proc/self/exe", []string{helperName + role}, &os.ProcAttr{
		// The collector runs often, which is cheap on so little.
		Env:   []string{helperEnv + "=" + role, "GOMAXPROCS=1", "GOGC=20"},
		Files: []*os.File{stdin, nil, nil},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		return nil, exit{}, fmt.Errorf("execute this program again as %s: %w", helperName+role, err)
	}
	return proc, newExit(proc.Pid, pidfd), nil
}
