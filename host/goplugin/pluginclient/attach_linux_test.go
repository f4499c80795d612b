package pluginclient_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	library "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
)

// TestAttachedByLibrary: a client of the library attaches to the plugin, knows that it runs, and ends it.
func TestAttachedByLibrary(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	dispense(t, client)
	c := config("")
	c.Cmd, c.Reattach = nil, client.ReattachConfig()
	pid, err := strconv.Atoi(client.ID())
	if err != nil || c.Reattach.Pid != pid {
		t.Fatalf("Pid %d, and the process is %d, %v", c.Reattach.Pid, pid, err)
	}
	other := library.NewClient(c)
	protocol, err := other.Client()
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(3 * time.Second) // the library looks once a second whether the process exists
	if other.Exited() {
		t.Error("the library takes it for ended")
	}
	raw, err := protocol.Dispense("talker")
	if err != nil {
		t.Fatal(err)
	}
	answers(t, strconv.Itoa(pid), func() (string, error) { return raw.(*talker).ask("") })
	other.Kill()
	await(t, "the end of the process", func() bool { return !exists(pid) })
	await(t, "that the plugin has ended for its own host", client.Exited)
}

// TestReattachOther: a client does not attach to a process whose socket another one serves, and does not end it.
func TestReattachOther(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	dispense(t, client)
	stranger := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stranger.Wait() }() // the library looks whether it exists
	defer func() { <-ended }()
	defer stranger.Process.Kill()
	c := config("")
	c.Cmd, c.Reattach = nil, client.ReattachConfig()
	c.Reattach.Pid = stranger.Process.Pid
	other := newClient(t, c)
	if _, err := other.Client(); !errors.Is(err, library.ErrProcessNotFound) || !strings.Contains(err.Error(), "serves at") {
		t.Errorf("%v, want %v, and which process serves", err, library.ErrProcessNotFound)
	}
	other.Kill()
	select {
	case err := <-ended:
		t.Errorf("the other process has ended: %v", err)
		ended <- err
	default:
	}
}

// TestReattachDead: attaching to a plugin that has ended returns the error of the library itself, because hosts compare it with ==.
func TestReattachDead(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	dispense(t, client)
	c := config("")
	c.Cmd, c.Reattach = nil, client.ReattachConfig()
	client.Kill()
	if _, err := newClient(t, c).Client(); err != library.ErrProcessNotFound { //nolint:errorlint // see above
		t.Errorf("%v, want %v", err, library.ErrProcessNotFound)
	}
	again := config("")
	again.Cmd, again.Reattach = nil, c.Reattach
	again.Reattach.Addr = &net.UnixAddr{Net: "unix", Name: "/dev/null/socket"}
	if _, err := newClient(t, again).Client(); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("%v, want what is wrong with the address", err)
	}
}

// TestReattachFails: a plugin to which a client cannot attach is ended by Kill only, as by the library.
func TestReattachFails(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	p := dispense(t, client)
	pid := client.ID()
	c := config("")
	c.Cmd, c.Reattach = nil, client.ReattachConfig()
	c.Reattach.Protocol = "another"
	other := newClient(t, c)
	if _, err := other.Client(); err == nil || !strings.Contains(err.Error(), "unknown server protocol: another") {
		t.Error(err)
	}
	answers(t, pid, func() (string, error) { return p.ask("") })
	other.Kill()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the process", func() bool { return !exists(n) })
}

// TestReattachAncestor: the process from which this one and the plugin descend is not the plugin, and not ended.
func TestReattachAncestor(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	dispense(t, client)
	c := config("")
	c.Cmd, c.Reattach = nil, client.ReattachConfig()
	c.Reattach.Pid, c.Reattach.Test = os.Getpid(), true // with Test no process is ended
	if _, err := newClient(t, c).Client(); !errors.Is(err, library.ErrProcessNotFound) {
		t.Errorf("%v, want %v", err, library.ErrProcessNotFound)
	}
}

// TestReattachChild: a client attaches to the process that was started, also if a child of it serves.
func TestReattachChild(t *testing.T) {
	t.Parallel()
	c := config("serve")
	c.Cmd.Path, c.Cmd.Args = "/bin/sh", []string{"/bin/sh", "-c", os.Args[0] + "; true"}
	client := newClient(t, c)
	server, err := dispense(t, client).ask("")
	if err != nil || server == client.ID() {
		t.Fatalf("process %s of %s serves, %v", server, client.ID(), err)
	}
	attach := config("")
	attach.Cmd, attach.Reattach, attach.AllowedProtocols = nil, client.ReattachConfig(), nil // the ReattachConfig says the protocol
	other := newClient(t, attach)
	answers(t, server, func() (string, error) { return dispense(t, other).ask("") })
}

// TestReattachNetRPC: a client attaches to a plugin that speaks net/rpc, as the library's does.
func TestReattachNetRPC(t *testing.T) {
	t.Parallel()
	c := config("netrpc")
	c.AllowedProtocols = nil
	starter := library.NewClient(c)
	t.Cleanup(func() {
		starter.Kill()
		collect(t)
	})
	if _, err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	attach := config("")
	attach.Cmd, attach.Reattach = nil, starter.ReattachConfig()
	other := newClient(t, attach)
	protocol, err := other.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := protocol.Ping(); err != nil || other.Protocol() != library.ProtocolNetRPC {
		t.Errorf("protocol %s, %v", other.Protocol(), err)
	}
}

// attachedRunner is what a host has of its own for a process that runs.
type attachedRunner struct {
	runner.AddrTranslator

	killed chan struct{}
}

func (attachedRunner) ID() string { return "own" }

func (r attachedRunner) Wait(context.Context) error {
	<-r.killed
	return nil
}

func (r attachedRunner) Kill(context.Context) error {
	close(r.killed)
	return nil
}

// TestReattachFunc: a host attaches and kills in its own way.
func TestReattachFunc(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	dispense(t, client)
	c := config("")
	c.Cmd, c.Reattach = nil, client.ReattachConfig()
	own := attachedRunner{killed: make(chan struct{})}
	c.Reattach.Pid, c.Reattach.ReattachFunc = 0, func() (runner.AttachedRunner, error) { return own, nil }
	other := newClient(t, c)
	dispense(t, other)
	if other.ID() != "own" {
		t.Errorf("ID %q", other.ID())
	}
	other.Kill()
	<-own.killed
}

// TestKillInTestMode: Kill leaves a plugin in test mode and the connection to it as they are, as that of the library does.
func TestKillInTestMode(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	dispense(t, client)
	c := config("")
	c.Cmd, c.Reattach = nil, client.ReattachConfig()
	c.Reattach.Test = true
	other := newClient(t, c)
	protocol, err := other.Client()
	if err != nil {
		t.Fatal(err)
	}
	other.Kill()
	if err := protocol.Ping(); err != nil {
		t.Errorf("after Kill: %v", err)
	}
	if err := protocol.Close(); err != nil {
		t.Error(err)
	}
}

// TestGRPCClient: the protocol client is of the library's type, and its Conn follows the plugin.
func TestGRPCClient(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	protocol, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	grpcClient, ok := protocol.(*library.GRPCClient)
	if !ok {
		t.Fatalf("Client returns a %T", protocol)
	}
	if again, err := client.Client(); err != nil || again != protocol {
		t.Errorf("the second client is another one, %v", err)
	}
	if len(grpcClient.Plugins) != 1 || grpcClient.Plugins["talker"] == nil {
		t.Errorf("plugins %v", grpcClient.Plugins)
	}
	reflects(t, grpcClient)
	pid := client.ID()
	kill(t, pid)
	await(t, "another process", func() bool {
		raw, err := grpcClient.Dispense("talker")
		if err != nil {
			return false
		}
		got, err := raw.(*talker).ask("")
		return err == nil && got != pid
	})
	reflects(t, grpcClient)
	if err := grpcClient.Ping(); err != nil {
		t.Error(err)
	}
	if protocol, err = client.Client(); err != nil {
		t.Fatal(err)
	}
	if err := protocol.Close(); err != nil {
		t.Error(err)
	}
	await(t, "the end after Close", client.Exited)
}

// reflects fails the test unless the plugin says itself which services it has.
func reflects(t *testing.T, client *library.GRPCClient) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(client.Conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	request := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range answer.GetListServicesResponse().GetService() {
		names[s.GetName()] = true
	}
	if !names["plugin.GRPCBroker"] || !names["grpc.health.v1.Health"] {
		t.Errorf("services %v", names)
	}
}

// TestFirstCause: the error of a start is why the plugin was not started, also if its directory cannot be removed after it.
func TestFirstCause(t *testing.T) {
	t.Parallel()
	dir, started := shortDir(t), filepath.Join(t.TempDir(), "started")
	c := config("late", fileEnv+"="+started)
	c.UnixSocketConfig = &library.UnixSocketConfig{TempDir: dir}
	client := newClient(t, c)
	failed := make(chan error, 1)
	go func() {
		_, err := client.Start()
		failed <- err
	}()
	awaitFile(t, started)
	busy := filepath.Join(entries(t, dir, "pbclient")[0], "busy")
	if err := os.Mkdir(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", busy, "tmpfs", 0, ""); err != nil {
		t.Logf("nothing can be mounted, so the directory is removed: %v", err)
	}
	defer unix.Unmount(busy, unix.MNT_DETACH)
	pid, err := os.ReadFile(started)
	if err != nil {
		t.Fatal(err)
	}
	kill(t, string(pid))
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "it ended before it said where it serves") || strings.Contains(err.Error(), "busy") {
		t.Error(err)
	}
}

// TestDescriptors reproduces PAINS 199: a client holds at most 12 descriptors, so that a host with the usual limit of 1,024 has room for many.
func TestDescriptors(t *testing.T) {
	const n, most = 8, 12
	dispense(t, newClient(t, config("serve"))) // opens what a process has once
	before := descriptors(t)
	clients := make([]*pluginclient.Client, n)
	for i := range clients {
		clients[i] = newClient(t, config("serve"))
		dispense(t, clients[i])
	}
	after, all := descriptors(t), 0
	for kind, count := range after {
		after[kind] = count - before[kind]
		all += after[kind]
	}
	maps.DeleteFunc(after, func(_ string, count int) bool { return count == 0 })
	t.Logf("%d clients hold %v", n, after)
	if all > n*most {
		t.Errorf("%d clients hold %d descriptors, want at most %d each: %v", n, all, most, after)
	}
}

// descriptors counts what this process has open, by what it is.
func descriptors(t *testing.T) map[string]int {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	kinds, number := map[string]int{}, regexp.MustCompile(`\d{2,}`)
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil { // else that of the directory, which is closed
			kinds[number.ReplaceAllString(target, "N")]++
		}
	}
	return kinds
}

// TestFewDescriptors: the error says that too many files are open, whichever of them could not be opened.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	for left := range 24 {
		out, err := runHost(t, fmt.Sprintf("%d descriptors", left)).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "too many open files") {
			t.Errorf("with %d more: %v, %s", left, err, out)
		}
	}
}

// exists reports whether a process has not ended.
func exists(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(state), ") Z ") && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// TestSocketGroup: the members of a group can come to the plugin's socket.
func TestSocketGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a socket to a group that it is not of")
	}
	c := config("serve")
	c.UnixSocketConfig = &library.UnixSocketConfig{Group: "23456"}
	client := newClient(t, c)
	dispense(t, client)
	address, err := client.Start()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(address.String())
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Gid != 23456 || info.Mode().Perm()&0o060 != 0o060 {
		t.Errorf("the socket is of group %d with mode %v", st.Gid, info.Mode())
	}
}
