package fleet_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	pbproxy "github.com/patchbay-dev/patchbay/internal/proxy"
)

// signNode makes the certificate of a node.
func (a *authority) signNode(name string) {
	a.t.Helper()
	a.sign(name, &x509.Certificate{
		DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// allowNodes lets every node call the plugins of a test.
const allowNodes = `[{identity: "*", types: ["*"], names: ["one"], methods: ["*"]}]`

// newCaller returns a daemon that can call and be called, with more of the section fleet.
func newCaller(t *testing.T, program, name, etcd string, ca *authority, allow, more string) *daemon {
	t.Helper()
	d := newDaemon(t, program, name, etcd)
	ca.signNode(name)
	file := filepath.Join(d.dir, "patchbay.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	added := fmt.Sprintf(`  serve:
    listen: 127.0.0.1:0
    cert: %s
    key: %s
    ca: %s
    allow: %s
%shandlers: {Echo: accept}
`, ca.file(name+".crt"), ca.file(name+".key"), ca.file("ca.crt"), allow, more)
	if err := os.WriteFile(file, append(text, added...), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestCall(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	nodes := map[string]*daemon{}
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "")
		nodes[name].start()
	}
	a := nodes["a"]
	if _, err := answers(t, a.caller("")); grpcstatus.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "no node that can be called") {
		t.Errorf("before there is one: %v", err)
	}
	for _, name := range []string{"b", "c"} {
		nodes[name].echo(nil)
	}
	a.inFleet(2)
	answersFrom(t, a.caller("b"), "b")
	answersFrom(t, a.caller("c"), "c")
	seen := map[string]bool{}
	for range 40 {
		c := a.caller("")
		first, err := answers(t, c)
		if err != nil {
			t.Fatal(err)
		}
		seen[first] = true
	}
	if len(seen) != 2 {
		t.Errorf("only %v answered", seen)
	}
	if _, err := answers(t, a.caller("a")); grpcstatus.Code(err) != codes.Unavailable && grpcstatus.Code(err) != codes.NotFound {
		t.Errorf("a node that does not have it: %v", err)
	}
	if _, err := answers(t, a.caller("nobody")); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("a node that is not there: %v", err)
	}
	transparent(t, a.caller("b"))
	command := func(args ...string) string { return a.run(append([]string{"call"}, args...)...) }
	t.Run("command", func(t *testing.T) {
		// The plugin has no reflection; what every plugin has is known.
		for _, flags := range [][]string{{"--node", "b"}, {"--fleet"}} {
			text := command(append(flags, "Echo/one", "grpc.health.v1.Health/Check")...)
			if !strings.Contains(text, "SERVING") {
				t.Errorf("%v: %s", flags, text)
			}
		}
	})
	a.echo(nil)
	for range 5 {
		answersFrom(t, a.caller(""), "a") // without waiting for etcd
	}
}

func transparent(t *testing.T, c grpc_testing.TestServiceClient) {
	t.Helper()
	var header metadata.MD
	body := bytes.Repeat([]byte{7}, 8<<20)
	ctx := metadata.AppendToOutgoingContext(soon(t), "say", "x", pbproxy.FencingTokenKey, "12")
	r, err := c.UnaryCall(ctx, &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: body}}, grpc.Header(&header))
	if err != nil || !bytes.Equal(r.GetPayload().GetBody(), body) {
		t.Errorf("8 MiB: %d bytes came back, %v", len(r.GetPayload().GetBody()), err)
	}
	for key, want := range map[string]string{"echo": "x", "deadline": "true", "token": "", "route": ""} {
		if got := strings.Join(header.Get(key), "|"); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	_, err = c.UnaryCall(soon(t), &grpc_testing.SimpleRequest{ResponseStatus: &grpc_testing.EchoStatus{Code: 9, Message: "no ü"}})
	if s := grpcstatus.Convert(err); s.Code() != 9 || s.Message() != "no ü" {
		t.Errorf("an error came back as %v", err)
	}
	ctx, cancel := context.WithCancel(soon(t))
	s, err := c.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		size := i * 10_000
		if err := s.Send(&grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: body[:size]}}); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Recv(); err != nil || len(r.GetPayload().GetBody()) != size {
			t.Fatalf("message %d: %d bytes, %v", i, len(r.GetPayload().GetBody()), err)
		}
	}
	cancel()
	if _, err := s.Recv(); grpcstatus.Code(err) != codes.Canceled {
		t.Errorf("after it was cancelled: %v", err)
	}
}

// TestCallDenied: nothing can be called from other nodes that no rule allows, nor by somebody without the right certificate.
func TestCallDenied(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	closed := newCaller(t, patchbay, "closed", etcd.client, ca, `[]`, "")
	narrow := newCaller(t, patchbay, "narrow", etcd.client, ca, `[
      {identity: "spiffe://example.com/*", types: [Echo], names: [one], methods: [grpc.testing.TestService/UnaryCall]},
      {identity: friend, types: [Echo], names: [one], methods: ["*"]}]`, "")
	friend := newCaller(t, patchbay, "friend", etcd.client, ca, `[]`, "")
	stranger := newCaller(t, patchbay, "stranger", etcd.client, ca, `[]`, "")
	for _, d := range []*daemon{closed, narrow, friend, stranger} {
		d.start()
	}
	closed.echo(nil)
	narrow.echo(nil)
	for _, d := range []*daemon{friend, stranger} {
		d.inFleet(2)
	}
	answersFrom(t, friend.caller("narrow"), "narrow")
	for _, test := range []struct {
		from *daemon
		to   string
	}{{friend, "closed"}, {stranger, "closed"}, {stranger, "narrow"}} {
		_, err := answers(t, test.from.caller(test.to))
		if grpcstatus.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "fleet.serve.allow") {
			t.Errorf("%s calls %s: %v", test.from.name, test.to, err)
		}
	}
	if events := narrow.run("events", "--tail", "100", "-o", "json", "--follow=false"); !strings.Contains(events, "fleet-call-denied") ||
		!strings.Contains(events, "stranger may not call") {
		t.Errorf("the denial is no event: %s", events)
	}

	// Whoever has a certificate and calls without a daemon is judged alike.
	address := addressOf(t, friend, "narrow")
	dial := func(t *testing.T, tls nodecall.TLS) grpc_testing.TestServiceClient {
		t.Helper()
		credentials, err := nodecall.NewCredentials(tls)
		if err != nil {
			t.Fatal(err)
		}
		dialer := &nodecall.Dialer{Credentials: credentials,
			Find: func(context.Context, fleet.Filter) ([]fleet.Instance, error) {
				return []fleet.Instance{{Node: &fleet.Node{NodeRecord: &fleetv1.NodeRecord{Address: address}, Name: "narrow"}}}, nil
			}}
		t.Cleanup(dialer.Close)
		return grpc_testing.NewTestServiceClient(through(t, dialer.Dial("Echo", "one", nodecall.Policy{})))
	}
	pair := func(a *authority, name string) nodecall.TLS {
		return nodecall.TLS{CA: ca.file("ca.crt"), Cert: a.file(name + ".crt"), Key: a.file(name + ".key")}
	}
	asClient := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	nomad, err := url.Parse("spiffe://example.com/nomad")
	if err != nil {
		t.Fatal(err)
	}
	ca.sign("nomad", &x509.Certificate{URIs: []*url.URL{nomad}, DNSNames: []string{"friend"}, ExtKeyUsage: asClient})
	workload := dial(t, pair(ca, "nomad"))
	answersFrom(t, workload, "narrow")
	if s, err := workload.FullDuplexCall(soon(t)); err == nil {
		// The URI goes before the DNS name, which could.
		if _, err = s.Recv(); grpcstatus.Code(err) != codes.PermissionDenied {
			t.Errorf("another method: %v", err)
		}
	}
	other := newAuthority(t)
	other.sign("friend", &x509.Certificate{DNSNames: []string{"friend"}, ExtKeyUsage: asClient})
	if _, err := answers(t, dial(t, pair(other, "friend"))); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("with the certificate of another CA: %v", err)
	}
	// A node is believed to be who its certificate says.
	wrong := pair(ca, "friend")
	wrong.ServerName = "other.{node}"
	if _, err := answers(t, dial(t, wrong)); grpcstatus.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "certificate is valid for narrow") {
		t.Errorf("a node with another name: %v", err)
	}
	// Certificates are read anew for each connection.
	changing := nodecall.TLS{CA: ca.file("ca.crt"), Cert: filepath.Join(t.TempDir(), "crt"), Key: filepath.Join(t.TempDir(), "key")}
	use := func(a *authority, name string) {
		for to, from := range map[string]string{changing.Cert: name + ".crt", changing.Key: name + ".key"} {
			text, err := os.ReadFile(a.file(from))
			if err == nil {
				err = os.WriteFile(to, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	use(other, "friend")
	c := dial(t, changing)
	if _, err := answers(t, c); err == nil {
		t.Error("the certificate of another CA is enough")
	}
	use(ca, "friend")
	eventually(t, "the new certificate counts", func() bool { _, err := answers(t, c); return err == nil })
}

func addressOf(t *testing.T, d *daemon, node string) string {
	t.Helper()
	var nodes []struct{ Name, Address string }
	if err := json.Unmarshal([]byte(d.run("fleet", "nodes", "-o", "json")), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.Name == node {
			return n.Address
		}
	}
	t.Fatalf("no node %s", node)
	return ""
}

// TestCallWithdrawn: a reload that takes back what a caller of another node may do ends his calls, and no one else's.
func TestCallWithdrawn(t *testing.T) {
	t.Parallel()
	const rule = `{identity: %s, types: [Echo], names: [one], methods: ["*"]}`
	both := fmt.Sprintf("["+rule+", "+rule+"]", "friend", "other")
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	serving := newCaller(t, patchbay, "serving", etcd.client, ca, both, "")
	friend := newCaller(t, patchbay, "friend", etcd.client, ca, `[]`, "")
	other := newCaller(t, patchbay, "other", etcd.client, ca, `[]`, "")
	for _, d := range []*daemon{serving, friend, other} {
		d.start()
	}
	serving.echo(nil)
	exchange := func(s grpc_testing.TestService_FullDuplexCallClient) error {
		if err := s.Send(&grpc_testing.StreamingOutputCallRequest{}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err := s.Recv()
		return err
	}
	streams := map[*daemon]grpc_testing.TestService_FullDuplexCallClient{}
	for _, d := range []*daemon{friend, other} {
		d.inFleet(1)
		s, err := d.caller("serving").FullDuplexCall(soon(t))
		if err == nil {
			err = exchange(s)
		}
		if err != nil {
			t.Fatalf("%s calls: %v", d.name, err)
		}
		streams[d] = s
	}

	file := filepath.Join(serving.dir, "patchbay.yaml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(text), both, fmt.Sprintf("["+rule+"]", "other"), 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out := serving.run("reload"); !strings.Contains(out, "fleet.serve.allow") {
		t.Errorf("reload prints %q", out)
	}
	if _, err := streams[friend].Recv(); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Errorf("the call that is not allowed any more ends with %v", err)
	}
	if _, err := answers(t, friend.caller("serving")); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Errorf("the next one ends with %v", err)
	}
	if err := exchange(streams[other]); err != nil {
		t.Errorf("the call of another caller ended: %v", err)
	}
}

// TestCallFailover: a node that dies between calls is passed over before its presence ends; a call that it had is lost, and not made again.
func TestCallFailover(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	nodes := map[string]*daemon{}
	var calls atomic.Int64
	began := make(chan string, 10)
	for _, name := range []string{"a", "b", "c"} {
		d := newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "")
		file := filepath.Join(d.dir, "patchbay.yaml")
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, bytes.Replace(text, []byte("presence: 2s"), []byte("presence: 50s"), 1), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		nodes[name] = d
		d.start()
		if name != "a" {
			d.echo(func(ctx context.Context, _ string) {
				calls.Add(1)
				if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("stay")) > 0 {
					began <- name
					<-ctx.Done()
				}
			})
		}
	}
	a := nodes["a"]
	a.inFleet(2)
	c := a.caller("")
	before := calls.Load()
	lost := make(chan error, 1)
	go func() {
		_, err := c.UnaryCall(metadata.AppendToOutgoingContext(soon(t), "stay", "1"), &grpc_testing.SimpleRequest{})
		lost <- err
	}()
	first := <-began
	other := map[string]string{"b": "c", "c": "b"}[first]
	nodes[first].kill()
	if err := <-lost; grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("the call that was there: %v", err)
	}
	if got := calls.Load() - before; got != 1 {
		t.Errorf("the call was made %d times", got)
	}
	start := time.Now()
	answersFrom(t, c, other)
	t.Logf("the next call was answered after %v", time.Since(start))
	answersFrom(t, a.caller(""), other)
	var states []struct{ Name, State string }
	if err := json.Unmarshal([]byte(a.run("fleet", "nodes", "-o", "json")), &states); err != nil {
		t.Fatal(err)
	}
	for _, n := range states {
		if n.State != "ready" {
			t.Errorf("node %s is %s already: the test shows nothing", n.Name, n.State)
		}
	}
	nodes[other].kill()
	if _, err := answers(t, c); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("when both are dead: %v", err)
	}
}

// TestCallCSI: the calls of a scheduler to a CSI controller reach the one node whose controller is active, and the next one when it dies.
func TestCallCSI(t *testing.T) {
	t.Parallel()
	etcd, patchbay, hostdir, ca := startOne(t), program(t, "patchbay"), program(t, "hostdir"), newAuthority(t)
	root := t.TempDir() // storage that all nodes share
	const allow = `[{identity: scheduler, types: [csi-controller], names: [hostdir.example.com],
      methods: [csi.v1.Controller/*, csi.v1.Identity/*, grpc.reflection.v1.ServerReflection/*]}]`
	nodes := map[string]*daemon{}
	for _, name := range []string{"a", "b", "scheduler"} {
		d := newCaller(t, patchbay, name, etcd.client, ca, allow, "  exclusive: [csi-controller]\n")
		file := filepath.Join(d.dir, "patchbay.yaml")
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, bytes.Replace(text, []byte("{Echo: accept}"), []byte("{CSIPlugin: csi}"), 1), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		d.start()
		nodes[name] = d
		if name == "scheduler" {
			continue
		}
		driver := exec.Command(hostdir, "--socket", filepath.Join(d.dir, "plugins", "hostdir.sock"), "--root", root, "--node-id", name)
		if err := driver.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = driver.Process.Kill(); _ = driver.Wait() })
	}
	scheduler := nodes["scheduler"]
	scheduler.run("fleet", "wait", "csi-controller/hostdir.example.com", "--count", "2")
	create := func(name string) (string, error) {
		return scheduler.try("call", "--fleet", "csi-controller/hostdir.example.com", "csi.v1.Controller/CreateVolume",
			`{"name":"`+name+`","capacityRange":{"requiredBytes":"1024"},"volumeCapabilities":[{"mount":{},"accessMode":{"mode":"SINGLE_NODE_WRITER"}}]}`)
	}
	eventually(t, "a volume is made", func() bool { _, err := create("one"); return err == nil })
	first := scheduler.holder("csi-controller", "")
	nodes[first].kill()
	eventually(t, "the other node makes a volume", func() bool { _, err := create("two"); return err == nil })
	scheduler.holder("csi-controller", first)
	if _, err := scheduler.try("call", "--node", map[string]string{"a": "b", "b": "a"}[first], "CSIPlugin/hostdir.example.com",
		"csi.v1.Node/NodeGetInfo"); err == nil || !strings.Contains(err.Error(), "PermissionDenied") {
		t.Errorf("what no rule allows: %v", err)
	}
}
