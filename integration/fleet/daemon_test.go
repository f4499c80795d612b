package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

// logBuffer is what a process has logged so far.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// bin is the directory of the programs that the tests run; it is made by who needs it first.
var bin string

var buildOnce = sync.OnceValue(func() (err error) {
	if bin, err = os.MkdirTemp("", "patchbay-fleet"); err != nil {
		return err
	}
	ctx := context.Background()
	return errors.Join(
		programs.Build(ctx, "../..", bin, false, "./cmd/patchbay"), programs.Build(ctx, "../../examples", bin, false, "./hostdir"),
	)
})

// program returns the path of patchbay or of another program, which are built once.
func program(t *testing.T, name string) string {
	t.Helper()
	if other := os.Getenv("PATCHBAY_DAEMON"); other != "" && name == "patchbay" { // as in integration/hostile
		return other
	}
	if err := buildOnce(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, name)
}

// daemon is a patchbay that runs.
type daemon struct {
	t       *testing.T
	program string
	dir     string
	name    string
	cmd     *exec.Cmd
	log     *logBuffer
}

func newDaemon(t *testing.T, program, name string, endpoints ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, program: program, dir: dir, name: name}
	t.Cleanup(func() { d.kill(); os.RemoveAll(dir) })
	text := fmt.Sprintf(`apiVersion: patchbay.dev/v1alpha1
kind: Config
pluginDirs: [%[1]s/plugins]
state: %[1]s/state.db
controlSocket: %[1]s/control.sock
fleet:
  etcd:
    endpoints: [%[2]s]
  node: %[3]s
  presence: 2s
  retention: 1m
`, dir, strings.Join(endpoints, ", "), name)
	if err := os.WriteFile(filepath.Join(dir, "patchbay.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	d.log = new(logBuffer)
	d.cmd = exec.Command(d.program, "run", "--config", filepath.Join(d.dir, "patchbay.yaml"))
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	eventually(d.t, "the daemon answers", func() bool { _, err := d.try("list"); return err == nil })
}

func (d *daemon) kill() { d.end(syscall.SIGKILL) }

func (d *daemon) end(signal syscall.Signal) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(signal)
	_ = d.cmd.Wait()
	d.cmd = nil
}

// try runs a command.
func (d *daemon) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.program, args...)
	cmd.Env = append(os.Environ(), "PATCHBAY_CONTROL_SOCKET="+filepath.Join(d.dir, "control.sock"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%v: %w\n%s", args, err, &stderr)
	}
	return stdout.String(), nil
}

func (d *daemon) run(args ...string) string {
	d.t.Helper()
	output, err := d.try(args...)
	if err != nil {
		d.t.Fatalf("%v\nlog:\n%s", err, d.log)
	}
	return output
}

// shows waits until "fleet list" says exactly this, as NODE/NAME=STATE, in the order of the list.
func (d *daemon) shows(want ...string) {
	d.t.Helper()
	var got []string
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		var list []struct{ Node, Name, State string }
		if err := json.Unmarshal([]byte(d.run("fleet", "list", "-o", "json")), &list); err != nil {
			d.t.Fatal(err)
		}
		got = nil
		for _, p := range list {
			got = append(got, p.Node+"/"+p.Name+"="+p.State)
		}
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("the fleet is %v, want %v", got, want)
		}
	}
}

// plugin registers with the daemon until the test ends.
type fakePlugin struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

func (p *fakePlugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return p.info, nil
}

func (p *fakePlugin) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (d *daemon) plugin(name string) (stop func()) {
	d.t.Helper()
	l, err := net.Listen("unix", filepath.Join(d.dir, "plugins", fmt.Sprintf("%x.sock", name)))
	if err != nil {
		d.t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, &fakePlugin{info: &registerapi.PluginInfo{
		Type: "CSIPlugin", Name: name, SupportedVersions: []string{"1.0.0"},
	}})
	go func() { _ = server.Serve(l) }()
	d.t.Cleanup(server.Stop)
	return server.Stop
}

// TestDaemons: two daemons see each other's plugins through their commands, over a stop, a crash, and a loss of etcd.
func TestDaemons(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	patchbay := program(t, "patchbay")
	a, b := newDaemon(t, patchbay, "a", etcd.client), newDaemon(t, patchbay, "b", etcd.client)
	a.start()
	b.start()
	stop := a.plugin("one")
	b.plugin("one")
	bury(t, etcd.admin(), "z", "evil\x1b[31m")
	for _, d := range []*daemon{a, b} {
		d.shows("z/evil\x1b[31m=unreachable", "a/one=registered", "b/one=registered")
	}
	a.run("fleet", "wait", "CSIPlugin/one", "--count", "2")
	if text := a.run("fleet", "list"); strings.Contains(text, "\x1b") || !strings.Contains(text, `evil\x1b[31m`) {
		t.Errorf("a name is not escaped: %q", text)
	}
	if text := a.run("fleet", "list", "-o", "name", "--node", "b", "--name", "one"); text != "b/CSIPlugin/one\n" {
		t.Errorf("names: %q", text)
	}
	if text := a.run("fleet", "nodes", "-o", "name"); text != "a\nb\nz\n" {
		t.Errorf("nodes: %q", text)
	}
	t.Logf("\n%s\n%s", a.run("fleet", "nodes"), a.run("fleet", "list"))

	// A watch sees what happens.
	watching, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch := exec.CommandContext(watching, patchbay, "fleet", "watch", "--nodes", "--control-socket", filepath.Join(b.dir, "control.sock"))
	watch.Cancel = func() error { return watch.Process.Signal(os.Interrupt) }
	var seen lines
	watch.Stdout = &seen
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	seen.await(t, "added     plugin  a/CSIPlugin/one")
	stop()
	b.run("fleet", "wait", "CSIPlugin/one", "--node", "a", "--for", "deregistered")
	seen.await(t, "removed   plugin  a/CSIPlugin/one")
	a.plugin("two")
	seen.await(t, "added     plugin  a/CSIPlugin/two")
	a.kill()
	seen.await(t, "changed   node    a  unreachable: Its presence in etcd has ended; it was last seen at")
	seen.await(t, "changed   plugin  a/CSIPlugin/two  1.0.0  unreachable: Its node is unreachable, last seen at")
	b.shows("z/evil\x1b[31m=unreachable", "b/one=registered", "a/two=unreachable")
	t.Logf("\n%s\n%s", b.run("fleet", "nodes"), b.run("fleet", "list"))
	if _, err := b.try("fleet", "wait", "CSIPlugin/two", "--timeout", "500ms"); err == nil || !strings.Contains(err.Error(), "0 of 1 match") {
		t.Errorf("wait for a dead plugin: %v", err)
	}
	_, err := b.try("fleet", "wait", "CSIPlugin/two", "--for", "deregistered", "--timeout", "500ms")
	if err == nil || !strings.Contains(err.Error(), "1 still match") {
		t.Errorf("a plugin whose node is away counts as deregistered: %v", err)
	}
	a.start()
	b.shows("z/evil\x1b[31m=unreachable", "b/one=registered", "a/two=registered")
	a.end(syscall.SIGTERM)
	seen.await(t, "changed   node    a  stopped: Its daemon stopped at")
	cancel()
	if err := watch.Wait(); err != nil && watching.Err() == nil {
		t.Errorf("the watch: %v", err)
	}

	// Without etcd everything local works, and the fleet is shown as it was.
	etcd.stop()
	b.plugin("local")
	b.run("wait", "CSIPlugin/local")
	eventually(t, "a warning", func() bool {
		cmd := exec.Command(patchbay, "fleet", "list", "--control-socket", filepath.Join(b.dir, "control.sock"))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		return cmd.Run() == nil && strings.Contains(stderr.String(), "warning: the fleet may have changed since: etcd cannot be reached")
	})
	etcd.start()
	b.shows("z/evil\x1b[31m=unreachable", "b/local=registered", "b/one=registered", "a/two=unreachable")
}

// TestSuspended: a daemon that stood still for longer than its presence is missed meanwhile, and publishes itself anew when it goes on.
func TestSuspended(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	patchbay := program(t, "patchbay")
	a, b := newDaemon(t, patchbay, "a", etcd.client), newDaemon(t, patchbay, "b", etcd.client)
	a.start()
	b.start()
	a.plugin("one")
	b.shows("a/one=registered")
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.shows("a/one=unreachable")
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	a.plugin("two")
	b.shows("a/one=registered", "a/two=registered")
}

// TestWaitForEtcd: a wait that begins before etcd can be reached goes on when it can.
func TestWaitForEtcd(t *testing.T) {
	t.Parallel()
	etcd := newMember(t, nil)
	a := newDaemon(t, program(t, "patchbay"), "a", etcd.client)
	a.start()
	a.plugin("one")
	waited := make(chan error, 1)
	go func() {
		_, err := a.try("fleet", "wait", "CSIPlugin/one", "--timeout", patience.String())
		waited <- err
	}()
	select {
	case err := <-waited:
		t.Fatalf("it waited for nothing: %v", err)
	case <-time.After(6 * time.Second):
	}
	etcd.start()
	if err := <-waited; err != nil {
		t.Error(err)
	}
}
