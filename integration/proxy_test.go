package integration

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mortal starts one of the programs in bin and returns what kills it with SIGKILL.
func mortal(t *testing.T, name string, args ...string) (kill func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cancel()
		_ = cmd.Wait() // it says that the program was killed
	}
	t.Cleanup(kill)
	return kill
}

// probe calls a CSI driver.
func probe(ctx context.Context, conn *grpc.ClientConn) error {
	var request, response []byte
	return conn.Invoke(ctx, "/csi.v1.Identity/Probe", &request, &response, grpc.ForceCodec(bytesCodec{}))
}

// hammer calls through a socket from 64 connections until stop is called, which returns the errors of the calls that failed; the others are
// counted.
func hammer(t *testing.T, socket string) (succeeded *atomic.Int64, stop func() []error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	succeeded = new(atomic.Int64)
	var callers sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	for range 64 {
		conn := dialPlugin(t, socket)
		callers.Go(func() {
			for ctx.Err() == nil {
				err := probe(t.Context(), conn)
				if err == nil {
					succeeded.Add(1)
					continue
				}
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
		})
	}
	return succeeded, func() []error {
		cancel()
		callers.Wait()
		return failed
	}
}

// more waits until further calls have succeeded.
func more(t *testing.T, succeeded *atomic.Int64) {
	t.Helper()
	for want, end := succeeded.Load()+128, time.Now().Add(patience); succeeded.Load() < want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("calls succeed no more")
		}
	}
}

func waitForFile(t *testing.T, path string, there bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Lstat(path); (err == nil) == there {
			return
		} else if !errors.Is(err, fs.ErrNotExist) && err != nil || time.Now().After(end) {
			t.Fatalf("%s should be there: %t; %v", path, there, err)
		}
	}
}

func TestStableSocketsPassCSISanity(t *testing.T) {
	dir := filepath.Join(shortTempDir(t), "dispense")
	d := startDaemonWith(t, "--handler", "CSIPlugin=csi", "--dispense-dir", dir)
	startHostdir(t, filepath.Join(d.dir, "hostdir.sock"), t.TempDir(), "--attach", "link")
	d.wait(hostdirID, "registered")
	node := filepath.Join(dir, "csi-node", "hostdir.example.com.sock")
	controller := filepath.Join(dir, "csi-controller", "hostdir.example.com.sock")
	waitForFile(t, node, true)
	waitForFile(t, controller, true)
	waitForFile(t, filepath.Join(dir, "CSIPlugin", "hostdir.example.com.sock"), true)
	sanity(t, node, controller)
}

// TestStableSocketOverUpgrades replaces a driver under 64 callers: in order, so that no call fails, and with SIGKILL, so that nothing but the
// calls that the driver had can fail.
func TestStableSocketOverUpgrades(t *testing.T) {
	tmp := shortTempDir(t)
	dir := filepath.Join(tmp, "dispense")
	d := &daemon{dir: filepath.Join(tmp, "plugins"), control: filepath.Join(tmp, "control.sock")} // it may warn of drivers
	d.process = start(t, nil, "patchbay", "run", "--plugin-dir", d.dir, "--state", filepath.Join(tmp, "state.db"),
		"--control-socket", d.control, "--dispense-dir", dir, "--handler", "CSIPlugin=csi")
	d.waitForLine("plugin directories have been searched")
	socket := filepath.Join(dir, "csi-node", "hostdir.example.com.sock")
	old := startHostdir(t, filepath.Join(d.dir, "0.sock"), t.TempDir())
	waitForFile(t, socket, true)
	succeeded, stop := hammer(t, socket)
	more(t, succeeded)
	instances := func(n int) {
		for end := time.Now().Add(patience); len(d.status(hostdirID)) != n; {
			if time.Now().After(end) {
				t.Fatalf("there are not %d instances", n)
			}
		}
	}
	current := func(path string) {
		for end := time.Now().Add(patience); ; {
			for _, p := range d.status(hostdirID) {
				if p.SocketPath == path && p.Current && p.State == "registered" {
					return
				}
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not the current instance", path)
			}
		}
	}
	for _, name := range []string{"1.sock", "2.sock"} {
		next := startHostdir(t, filepath.Join(d.dir, name), t.TempDir())
		current(filepath.Join(d.dir, name))
		more(t, succeeded)
		old.stop()
		instances(1)
		more(t, succeeded)
		old = next
	}
	// Killed with a successor there already: no call is at the one that dies.
	kill := mortal(t, "hostdir", "--socket", filepath.Join(d.dir, "3.sock"), "--root", t.TempDir(), "--node-id", "node-1")
	current(filepath.Join(d.dir, "3.sock"))
	old.stop()
	instances(1)
	next := mortal(t, "hostdir", "--socket", filepath.Join(d.dir, "4.sock"), "--root", t.TempDir(), "--node-id", "node-1")
	current(filepath.Join(d.dir, "4.sock"))
	more(t, succeeded)
	kill()
	more(t, succeeded)
	more(t, succeeded)
	if failed := stop(); len(failed) > 0 {
		t.Fatalf("%d of %d calls failed: %v", len(failed), succeeded.Load(), errors.Join(failed...))
	}
	t.Logf("%d calls over three upgrades and a kill", succeeded.Load())

	// Killed alone.
	succeeded, stop = hammer(t, socket)
	more(t, succeeded)
	next()
	mortal(t, "hostdir", "--socket", filepath.Join(d.dir, "5.sock"), "--root", t.TempDir(), "--node-id", "node-1")
	current(filepath.Join(d.dir, "5.sock"))
	more(t, succeeded)
	for _, err := range stop() {
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "hostdir.example.com") {
			t.Errorf("while there was no driver: %v", err)
		}
	}
}

// TestStableSocketOverDaemons ends the daemon, in order and with SIGKILL: the next one serves the socket at the same path.
func TestStableSocketOverDaemons(t *testing.T) {
	if err := buildExamples(); err != nil {
		t.Fatal(err)
	}
	dir := shortTempDir(t)
	flags := []string{
		"run", "--plugin-dir", filepath.Join(dir, "plugins"), "--state", filepath.Join(dir, "state.db"), "--control-socket",
		filepath.Join(dir, "control.sock"), "--dispense-dir", filepath.Join(dir, "dispense"), "--handler", "CSIPlugin=csi",
	}
	socket := filepath.Join(dir, "dispense", "CSIPlugin", "hostdir.example.com.sock")
	gone := filepath.Join(dir, "dispense", "CSIPlugin", "gone.sock")
	first := start(t, nil, "patchbay", flags...)
	first.waitForLine("plugin directories have been searched")
	startHostdir(t, filepath.Join(dir, "plugins", "hostdir.sock"), t.TempDir())
	waitForFile(t, socket, true)
	conn := dialPlugin(t, socket)
	if err := probe(t.Context(), conn); err != nil {
		t.Error(err)
	}
	first.stop()
	waitForFile(t, socket, false)
	again := func(when string) {
		t.Helper()
		// The client finds the socket by itself, waiting as it always does. A plugin that is not confirmed yet is waited for by the daemon.
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var request, response []byte
		if err := conn.Invoke(ctx, "/csi.v1.Identity/Probe", &request, &response, grpc.ForceCodec(bytesCodec{}),
			grpc.WaitForReady(true)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	kill := mortal(t, "patchbay", flags...)
	waitForFile(t, socket, true)
	again("after a restart")
	kill()
	if err := os.Rename(socket, gone); err != nil { // as if its plugin went while no daemon ran
		t.Fatal(err)
	}
	second := start(t, nil, "patchbay", flags...)
	second.waitForLine("plugin directories have been searched")
	waitForFile(t, socket, true)
	waitForFile(t, gone, false)
	again("after a kill")
}
