package bench

import (
	"errors"
	"fmt"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// patience is how long one call to a process may take before the benchmark fails.
const patience = 3 * time.Minute

// process is one process of a benchmark. Calls go over its standard input and output.
type process struct {
	b      testing.TB
	cmd    *exec.Cmd
	client *rpc.Client
}

// start starts a process, with the directory that it works in and the role as arguments: a program of its own, or else the
// test binary in that role. It ends with the benchmark at the latest.
func start(b testing.TB, role, dir string) *process {
	b.Helper()
	exe, err := os.Executable()
	if folder, ok := standalone[role]; ok {
		exe, err = program(folder)
	}
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), exe, dir, role)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	// A benchmark that is killed leaves nobody behind, even if a call is stuck.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return &process{b: b, cmd: cmd, client: proc.NewClient(stdout, stdin)}
}

// resetSignals resets the signals that this process ignores because its parent did: make ignores two, nohup and scripts others. Hosts would
// ignore them too, and start each plugin through their own program, which resets them.
func resetSignals() {
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		var now, byDefault handler
		if sigaction(sig, nil, &now); now[0] == ignore[0] {
			sigaction(sig, &byDefault, nil)
		}
	}
}

// handler is struct sigaction of the kernel, whose first field is the function, SIG_IGN or SIG_DFL.
type handler [4]uintptr

var ignore = handler{1}

// sigaction calls sigaction(2), because package signal does not have the signals that make ignores.
func sigaction(sig syscall.Signal, set, was *handler) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(was)), 8, 0, 0)
}

// TestResetSignals checks that a process ignores no signal although the process that started the benchmark did.
func TestResetSignals(t *testing.T) {
	sigaction(33, &ignore, nil) // as make does
	resetSignals()
	p := start(t, "idle", t.TempDir())
	defer p.stop()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(status), "\nSigIgn:\t0000000000000000\n") {
		t.Errorf("got %s, %v", status, err)
	}
}

// onOneProcessor returns a comparison whose processes, and all that they start, run on one processor.
func onOneProcessor(run func(b testing.TB)) func(b testing.TB) {
	return func(b testing.TB) {
		b.Helper()
		// Processes are started by this thread, from which they have the processors that they may use.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var all, one unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			b.Fatal(err)
		}
		first := 0
		for !all.IsSet(first) {
			first++
		}
		one.Set(first)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := unix.SchedSetaffinity(0, &all); err != nil {
				b.Error(err)
			}
		}()
		run(b)
	}
}

// TestOnOneProcessor checks that a process that is started may use one processor, and one that is started later all.
func TestOnOneProcessor(t *testing.T) {
	processors := func(b testing.TB) (n int) {
		p := start(b, "idle", b.TempDir())
		defer p.stop()
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(p.cmd.Process.Pid, &set); err != nil {
			b.Fatal(err)
		}
		return set.Count()
	}
	onOneProcessor(func(b testing.TB) {
		if n := processors(b); n != 1 {
			b.Errorf("a process may use %d processors, want 1", n)
		}
	})(t)
	if n := processors(t); n != runtime.NumCPU() {
		t.Errorf("a later process may use %d processors, want %d", n, runtime.NumCPU())
	}
}

// call calls a method of the process and fails the benchmark if that does not succeed in time.
func (p *process) call(method string, args, reply any) {
	p.b.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case call := <-p.client.Go(method, args, reply, make(chan *rpc.Call, 1)).Done:
		if call.Error != nil {
			p.b.Fatalf("%s(%v): %v", method, args, call.Error)
		}
	case <-timeout.C:
		p.b.Fatalf("%s(%v) has not returned after %v", method, args, patience)
	}
}

// ask calls a method that takes nothing and returns what it replies.
func ask[T any](p *process, method string) T {
	p.b.Helper()
	var reply T
	p.call(method, proc.None(false), &reply)
	return reply
}

// stop ends the process, whose standard input ends, and waits for it.
func (p *process) stop() {
	p.b.Helper()
	if err := errors.Join(p.client.Close(), p.cmd.Wait()); err != nil {
		p.b.Fatal(err)
	}
}

// kill ends a process that may be stuck.
func (p *process) kill() {
	p.b.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.b.Fatal(err)
	}
	// It says that the process was killed.
	_ = p.cmd.Wait()
	_ = p.client.Close()
}

// standalone are the contestants that are programs of their own, by their folders: the peers, whose modules are their own too, and all that
// find plugins.
var standalone = map[string]string{
	kubelet: "kubelet", "nomad": "nomad", goPlugin: "goplugin", goPluginMTLS: "goplugin", "ttrpc": "ttrpc",
	"floor": floors, "floor-http2": floors, floorRaw: floors, "idle": floors,
	"watcher": "managers/patchbay", "runtime": "managers/patchbay",
}

const floors = "managers/floor"

// programs are the contestants and the plugins that have been built, in a directory that is made for the first one.
var programs struct {
	sync.Mutex
	dir string
}

// program returns the path of the program whose source is in a folder. It is built if this has not been done yet.
func program(folder string) (path string, err error) {
	programs.Lock()
	defer programs.Unlock()
	if programs.dir == "" {
		if programs.dir, err = os.MkdirTemp("", "patchbay-bench-"); err != nil {
			return "", err
		}
	}
	path = filepath.Join(programs.dir, strings.ReplaceAll(folder, "/", "-"))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	// "go run" keeps what it has linked in the build cache, as "go build" does not, and the peers seldom change. cp copies what it would run.
	build := exec.Command("go", "run", "-exec", "cp", ".", path)
	build.Dir = filepath.FromSlash(folder)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build %s: %w\n%s", folder, err, out)
	}
	return path, nil
}

func removePrograms() error {
	if programs.dir == "" {
		return nil
	}
	return os.RemoveAll(programs.dir)
}
