package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const nodeID = "Greeter/node.example.com"

// nodePlugin installs the plugin of ../examples/node in a copy, once, and returns the path of its program, or why that is not possible. The
// interpreter is in bin then.
var nodePlugin = sync.OnceValues(func() (string, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return "", err
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return "", err
	}
	dir := filepath.Join(bin, "node-plugin")
	if err := os.CopyFS(dir, os.DirFS("../examples/node")); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = dir
	npm.WaitDelay = patience
	if output, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", npm, err, output)
	}
	return filepath.Join(dir, "plugin.js"), os.Symlink(node, filepath.Join(bin, "node"))
})

// needNode returns the program of the plugin. Without Node.js, npm or the packages the test is skipped, but not where CI is set: there they
// have to be.
func needNode(t *testing.T) string {
	t.Helper()
	program, err := nodePlugin()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("the plugin in Node.js cannot be installed here: %v", err)
	}
	return program
}

func startNode(t *testing.T, socket string, args ...string) *process {
	t.Helper()
	return start(t, nil, "node", append([]string{needNode(t), "--socket", socket}, args...)...)
}

// startDaemonWith is startDaemon with further flags.
func startDaemonWith(t *testing.T, flags ...string) *daemon {
	t.Helper()
	dir := shortTempDir(t)
	d := &daemon{dir: filepath.Join(dir, "plugins"), control: filepath.Join(dir, "control.sock")}
	t.Cleanup(func() { d.checkLog(t) })
	flags = append([]string{
		"run", "--plugin-dir", d.dir, "--state", filepath.Join(dir, "state.db"), "--control-socket", d.control, "--log-format", "json",
	}, flags...)
	d.process = start(t, nil, "patchbay", flags...)
	d.waitForLine("plugin directories have been searched")
	return d
}

// bytesCodec has calls take and give encoded messages.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) ([]byte, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, errors.New("want encoded messages")
	}
	return *message, nil
}

func (bytesCodec) Unmarshal(data []byte, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return errors.New("want encoded messages")
	}
	*message = append([]byte(nil), data...)
	return nil
}

// greeting takes a GreetResponse apart.
func greeting(t *testing.T, message []byte) (text string, pid int) {
	t.Helper()
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		message = message[max(n, 0):]
		switch {
		case number == 1 && kind == protowire.BytesType:
			text, n = protowire.ConsumeString(message)
		case number == 2 && kind == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(message)
			pid = int(v)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			t.Fatalf("the answer is no GreetResponse: %v", protowire.ParseError(n))
		}
		message = message[n:]
	}
	return text, pid
}

func dialPlugin(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// greet calls Greet and returns the process that answered.
func greet(t *testing.T, conn *grpc.ClientConn) int {
	t.Helper()
	request := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "Ada")
	var response []byte
	if err := conn.Invoke(t.Context(), "/example.greeter.v1.Greeter/Greet", &request, &response, grpc.ForceCodec(bytesCodec{})); err != nil {
		t.Fatal(err)
	}
	text, pid := greeting(t, response)
	if text != "Hello, Ada!" {
		t.Errorf("the plugin says %q", text)
	}
	return pid
}

// count calls Count and returns how many answers came.
func count(t *testing.T, conn *grpc.ClientConn, name string, times uint64) (int, error) {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/example.greeter.v1.Greeter/Count",
		grpc.ForceCodec(bytesCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	request := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	request = protowire.AppendVarint(protowire.AppendTag(request, 2, protowire.VarintType), times)
	if err := errors.Join(stream.SendMsg(&request), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		var response []byte
		if err := stream.RecvMsg(&response); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

func TestNodePlugin(t *testing.T) {
	needNode(t)
	d := startDaemonWith(t, "--accept-type", "Greeter")
	socket := filepath.Join(d.dir, "node.sock")
	p := startNode(t, socket)
	checkSmooth(d, nodeID)
	p.waitForLine("registered as " + nodeID)

	conn := dialPlugin(t, socket)
	if pid := greet(t, conn); pid != p.cmd.Process.Pid {
		t.Errorf("process %d answers, want %d", pid, p.cmd.Process.Pid)
	}
	if n, err := count(t, conn, "", 1000); n != 1000 || err != nil {
		t.Errorf("Count gave %d answers and %v", n, err)
	}
	if _, err := count(t, conn, "", 1001); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Count of too many gave %v", err)
	}
	// Answers that have to wait for their reader cost nothing that stays.
	if n, err := count(t, conn, strings.Repeat("n", 1<<16), 100); n != 100 || err != nil {
		t.Errorf("Count of large answers gave %d of them and %v", n, err)
	}
	if line, ok := p.output.line("MaxListenersExceededWarning"); ok {
		t.Errorf("the plugin leaks: %s", line)
	}
	health := healthpb.NewHealthClient(conn)
	if r, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", r, err)
	}
	if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("the health of an unknown service is %v", err)
	}
	watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING}
	if r, err := watch.Recv(); err != nil || r.Status != want[0] {
		t.Errorf("health is watched as %v, %v", r, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if r, err := watch.Recv(); err != nil || r.Status != want[1] {
			t.Errorf("at the end, health is watched as %v, %v", r, err)
		}
	}()
	checkLife(t, d, p, plugin{
		Type: "Greeter", Name: "node.example.com", Version: "1.0.0", Versions: []string{"1.0.0"}, Endpoint: socket, SocketPath: socket,
	})
	<-ended
	if left, err := os.ReadDir(d.dir); err != nil || len(left) > 0 {
		t.Errorf("the plugin left %v, %v", left, err)
	}
}

func TestNodePluginIsUpgraded(t *testing.T) {
	program := needNode(t)
	d := startDaemonWith(t, "--accept-type", "Greeter")
	one, two := filepath.Join(d.dir, "node-1.sock"), filepath.Join(d.dir, "node-2.sock")
	old := startNode(t, one)
	d.wait(nodeID, "registered")

	// Nobody takes the place of a living one.
	output, err := exec.CommandContext(t.Context(), filepath.Join(bin, "node"), program, "--socket", one).CombinedOutput()
	if err == nil || !strings.Contains(string(output), "is served by somebody") {
		t.Errorf("a second instance at the same path: %v\n%s", err, output)
	}
	killed := exec.CommandContext(t.Context(), filepath.Join(bin, "node"), program, "--socket", two, "--version", "2.0.0")
	stdout, err := killed.StderrPipe()
	if err == nil {
		err = killed.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil { // it says something once it is registered
		t.Fatal(err)
	}
	current := func() (version string) {
		for _, p := range d.list() {
			if p.Current {
				version = p.Version
			}
		}
		return version
	}
	if v := current(); v != "2.0.0" {
		t.Errorf("after the upgrade, version %s is current", v)
	}
	old.stop()
	if listed := d.list(); len(listed) != 1 || listed[0].Version != "2.0.0" || listed[0].State != "registered" {
		t.Errorf("after the end of the old instance, listed are %+v", listed)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	// The daemon tries its socket until there is another one, and warns of that if it takes long to start.
	d.warns = "dial unix " + two + ": connect: connection refused"
	d.wait(nodeID, "deregistered")
	if _, err := os.Lstat(two); err != nil {
		t.Fatalf("a plugin that was killed leaves its socket: %v", err)
	}
	again := startNode(t, two, "--version", "3.0.0")
	d.wait(nodeID, "registered")
	if v := current(); v != "3.0.0" {
		t.Errorf("after the crash, version %s is current", v)
	}
	again.stop()
}

func TestNodePluginIsLaunched(t *testing.T) {
	program := needNode(t)
	config := filepath.Join(t.TempDir(), "patchbay.yaml")
	text := fmt.Sprintf(`apiVersion: patchbay.dev/v1alpha1
kind: Config
handlers: {Greeter: accept}
plugins:
  - name: greeter
    command: [%s, %s]
`, filepath.Join(bin, "node"), program)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDaemonWith(t, "--config", config)
	d.wait(nodeID, "registered")
	launched := d.list()
	if len(launched) != 1 || launched[0].Source != "launched" {
		t.Fatalf("listed are %+v, want one plugin that was launched", launched)
	}
	first := greet(t, dialPlugin(t, launched[0].Endpoint))
	d.patchbay("restart", "greeter")
	if listed := d.list(); len(listed) == 0 || listed[0].Endpoint == launched[0].Endpoint {
		t.Errorf("after the restart, listed are %+v", listed)
	} else if second := greet(t, dialPlugin(t, listed[0].Endpoint)); second == first {
		t.Errorf("after the restart, process %d still answers", first)
	}
	// What it logs reaches the daemon over the host's socket, with its ticket.
	if logs := d.patchbay("logs", "greeter"); !strings.Contains(string(logs), "registered as "+nodeID) {
		t.Errorf("the plugin's log is:\n%s", logs)
	}
	began := time.Now()
	d.patchbay("stop", "greeter")
	d.wait(nodeID, "deregistered")
	t.Logf("stopped after %v", time.Since(began).Round(time.Millisecond))
}

// The proto file of the plugin is the one that the page shows.
func TestProtocolPageShowsTheProtocol(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	proto, err := os.ReadFile("../examples/node/proto/registration.proto")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```proto\n"+string(proto)+"```") {
		t.Error("docs/reference/protocol.md and examples/node/proto/registration.proto differ")
	}
}

// What the page asks of a plugin, "patchbay verify" checks; with and without the handshake of a host that launches.
func TestNodePluginIsVerified(t *testing.T) {
	program := needNode(t)
	verify(t, filepath.Join(bin, "node"), program, "--socket", "{socket}")
}

// verify has "patchbay verify" check a plugin that is given as a command, and fails the test if a rule does.
func verify(t *testing.T, command ...string) {
	t.Helper()
	for _, flags := range [][]string{nil, {"--no-handshake"}} {
		args := append(append([]string{"verify", "--strict"}, flags...), "--")
		output, err := exec.CommandContext(t.Context(), filepath.Join(bin, "patchbay"), append(args, command...)...).CombinedOutput()
		if err != nil {
			t.Errorf("patchbay %v: %v\n%s", args, err, output)
		}
	}
}
