package bench

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// benchP19 measures the daemon without any plugin, as it is released: the size of its program, how long it takes from its start until it is
// ready, and its resident memory after some seconds of rest. The floor ("grpc-go") is a server of grpc-go with a file of bbolt.
func benchP19(b testing.TB) {
	rounds, rest := 10, 5*time.Second
	if small(b) {
		rounds, rest = 1, 100*time.Millisecond
	}
	b.Setenv("CGO_ENABLED", "0")
	dir := b.TempDir()
	programs := []resting{{name: "grpc-go", path: filepath.Join(dir, "resting")}, {name: "patchbay", path: filepath.Join(dir, "patchbay")}}
	for i, folder := range []string{"plugins/resting", "../cmd/patchbay"} {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", programs[i].path, ".")
		build.Dir = filepath.FromSlash(folder)
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("cannot build %s: %v\n%s", folder, err, out)
		}
	}
	for round := range rounds {
		turns(programs, round, func(r resting) { r.measure(b, rest) })
	}
}

// resting is a program that is measured at rest.
type resting struct{ name, path string }

func (r resting) measure(b testing.TB, rest time.Duration) {
	b.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: in("notify"), Net: "unixgram"})
	if err := errors.Join(err, os.Mkdir(in("plugins"), 0o750)); err != nil {
		b.Fatal(err)
	}
	defer notify.Close()
	cmd := exec.Command(r.path, in("control.sock"), in("state"))
	if r.name == "patchbay" {
		cmd = exec.Command(r.path, "run", "--plugin-dir", in("plugins"), "--state", in("state"), "--control-socket", in("control.sock"))
	}
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+in("notify"))
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = errors.Join(cmd.Process.Signal(syscall.SIGKILL), cmd.Wait()) }()
	message := make([]byte, 4096)
	for n := 0; !bytes.Contains(message[:n], []byte("READY=1")); {
		if err := notify.SetReadDeadline(begin.Add(patience)); err != nil {
			b.Fatal(err)
		}
		if n, err = notify.Read(message); err != nil {
			b.Fatalf("%s has not become ready: %v", r.name, err)
		}
	}
	ready := time.Since(begin)
	time.Sleep(rest)
	tree, err := proc.ReadTree(cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	program, err := os.Stat(r.path)
	if err != nil {
		b.Fatal(err)
	}
	record(b, "P19/"+r.name, 1, metrics{
		"ready-ms", float64(ready.Microseconds()) / 1e3, "resident-MB", float64(tree.Resident) / 1e6, "program-MB", float64(program.Size()) / 1e6,
	})
}
