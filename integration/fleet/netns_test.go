//go:build linux

package fleet_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The addresses are those of a network that only exists in the test's own namespaces.
const (
	hubAddress  = "192.0.2.1"
	nodeAddress = "192.0.2.%d/24"
)

// namespace is a network namespace. It has no name in the file system: it is that of a process, which ends with the test, however that
// ends, because its standard input does. The kernel removes the namespace, and its links, with the last process in it.
type namespace struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

// newNamespace starts a program in a namespace of its own.
func newNamespace(t *testing.T, cmd *exec.Cmd) *namespace {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("this needs the right to make network namespaces: %v", err)
	}
	n := &namespace{t: t, cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout)}
	t.Cleanup(func() {
		stdin.Close()
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait()
	})
	return n
}

// path is the file that stands for the namespace.
func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/ns/net", n.cmd.Process.Pid) }

// do runs commands in the namespace, one in each line.
func (n *namespace) do(lines string) {
	n.t.Helper()
	for line := range strings.Lines(lines) {
		cmd := exec.Command("nsenter", append([]string{"--net=" + n.path()}, strings.Fields(line)...)...)
		if output, err := cmd.CombinedOutput(); err != nil {
			n.t.Fatalf("%s: %v\n%s", line, err, output)
		}
	}
}

// TestEtcdInNamespace is no test but the process of etcd for those with namespaces. It waits until it is told that its network is there.
func TestEtcdInNamespace(t *testing.T) {
	if os.Getenv("FLEET_TEST_ETCD") == "" {
		t.Skip("this is a part of TestNamespaces")
	}
	stdin := bufio.NewReader(os.Stdin)
	if _, err := stdin.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	m := newMember(t, nil)
	m.client, m.peer = "http://"+hubAddress+":2379", "http://"+hubAddress+":2380"
	m.cluster = m.name + "=" + m.peer
	m.start()
	fmt.Println("etcd is ready")
	_, _ = io.Copy(io.Discard, stdin)
}

// network is a bridge in a namespace that has etcd, and a namespace for each node, which is linked to the bridge.
type network struct {
	hub   *namespace
	nodes []*namespace
}

func newNetwork(t *testing.T, nodes int) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may make network namespaces")
	}
	for _, tool := range []string{"ip", "bridge", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("this needs %s, of iproute2 or util-linux: %v", tool, err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	etcd := exec.Command(self, "-test.run=^TestEtcdInNamespace$", "-test.timeout=5m")
	etcd.Env = append(os.Environ(), "FLEET_TEST_ETCD=1", "TMPDIR="+t.TempDir())
	n := &network{hub: newNamespace(t, etcd)}
	n.hub.do("ip link set lo up\nip link add hub type bridge\nip address add " + hubAddress + "/24 dev hub\nip link set hub up")
	for i := range nodes {
		node := newNamespace(t, exec.Command("cat"))
		n.nodes = append(n.nodes, node)
		n.hub.do(fmt.Sprintf("ip link add port%d type veth peer name eth0 netns %d\nip link set port%d master hub up",
			i, node.cmd.Process.Pid, i))
		node.do(fmt.Sprintf("ip address add "+nodeAddress+" dev eth0\nip link set lo up\nip link set eth0 up", i+2))
	}
	if _, err := io.WriteString(n.hub.stdin, "go\n"); err != nil {
		t.Fatal(err)
	}
	for {
		line, err := n.hub.stdout.ReadString('\n')
		if err != nil {
			t.Fatalf("etcd does not start: %v", err)
		}
		if strings.HasPrefix(line, "etcd is ready") {
			return n
		}
	}
}

// daemon returns a daemon that will run in the namespace of a node, and ends with the test, however that ends.
func (n *network) daemon(t *testing.T, program, name string, node int) *daemon {
	t.Helper()
	wrapper := filepath.Join(t.TempDir(), "patchbay")
	text := fmt.Sprintf("#!/bin/sh\nexec setpriv --pdeathsig KILL nsenter --net=%s %s \"$@\"\n", n.nodes[node].path(), program)
	if err := os.WriteFile(wrapper, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return newDaemon(t, wrapper, name, "http://"+hubAddress+":2379")
}

// warning waits until a command says so on standard error; empty stands for nothing.
func (d *daemon) warning(want string, args ...string) {
	d.t.Helper()
	var got bytes.Buffer
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		got.Reset()
		cmd := exec.Command(d.program, append(args, "--control-socket", filepath.Join(d.dir, "control.sock"))...)
		cmd.Stderr = &got
		err := cmd.Run()
		if err == nil && (want == "" && got.Len() == 0 || want != "" && strings.Contains(got.String(), want)) {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("%s: %v says %v: %q, want %q", d.name, args, err, &got, want)
		}
	}
}

// lastSeen returns when the plugins of a node were last seen.
func (d *daemon) lastSeen(node string) time.Time {
	d.t.Helper()
	var list []struct{ LastSeen time.Time }
	if err := json.Unmarshal([]byte(d.run("fleet", "list", "--node", node, "-o", "json")), &list); err != nil || len(list) == 0 {
		d.t.Fatalf("%s: plugins of %s: %v, %v", d.name, node, list, err)
	}
	return list[0].LastSeen
}

// TestNamespaces: of three nodes on a network two are cut off, one whose link is taken down, and one whose link stays up while everything
// on it is dropped. They work on and say that they are alone; the third sees them as unreachable when their presence has ended. When the
// network is back, everything that has happened anywhere meanwhile is seen everywhere, a death included.
func TestNamespaces(t *testing.T) {
	network := newNetwork(t, 3)
	patchbay := program(t, "patchbay")
	down, drop := network.daemon(t, patchbay, "down", 0), network.daemon(t, patchbay, "drop", 1)
	whole := network.daemon(t, patchbay, "whole", 2)
	all, alone := []*daemon{down, drop, whole}, []*daemon{down, drop}
	show := func(daemons []*daemon, want ...string) {
		t.Helper()
		for _, d := range daemons {
			d.shows(want...)
		}
	}
	for _, d := range all {
		d.start()
		d.plugin("one")
	}
	stop := down.plugin("passing")
	show(all, "down/one=registered", "drop/one=registered", "whole/one=registered", "down/passing=registered")

	began := time.Now()
	network.nodes[0].do("ip link set eth0 down")
	network.hub.do("bridge link set dev port1 state 0") // disabled: the bridge drops what comes and goes, and both ends have a carrier
	whole.shows("down/one=unreachable", "drop/one=unreachable", "whole/one=registered", "down/passing=unreachable")
	took := time.Since(began)
	t.Logf("the third node sees both as unreachable after %v with a presence of %v", took.Round(time.Millisecond), presence)
	if took > presence+15*time.Second {
		t.Errorf("the nodes were seen as unreachable only after %v", took)
	}
	for _, d := range alone {
		if seen := whole.lastSeen(d.name); seen.Before(began.Add(-2*presence)) || seen.After(time.Now()) {
			t.Errorf("%s was cut off at %v and last seen at %v", d.name, began, seen)
		}
		// Local work goes on.
		d.plugin("alone")
		d.run("wait", "CSIPlugin/alone")
		d.warning("warning: fleet is ", "list")
	}
	stop()
	down.run("wait", "CSIPlugin/passing", "--for", "deregistered")
	whole.plugin("meanwhile")
	whole.run("wait", "CSIPlugin/meanwhile")
	for _, d := range alone {
		d.warning("warning: the fleet may have changed since: ", "fleet", "list")
		// It shows the fleet as it was.
		d.shows("down/one=registered", "drop/one=registered", "whole/one=registered", "down/passing=registered")
	}
	whole.kill()
	t.Logf("the third node is killed %v after the cut", time.Since(began).Round(time.Millisecond))

	began = time.Now()
	network.nodes[0].do("ip link set eth0 up")
	network.hub.do("bridge link set dev port1 state 3")
	show(alone, "down/alone=registered", "drop/alone=registered", "whole/meanwhile=unreachable", "down/one=registered",
		"drop/one=registered", "whole/one=unreachable")
	t.Logf("both nodes see everything %v after the network is back", time.Since(began).Round(time.Millisecond))
	for _, d := range alone {
		d.warning("", "list")
		d.warning("", "fleet", "list")
	}
	whole.start()
	show(all, "down/alone=registered", "drop/alone=registered", "whole/meanwhile=registered", "down/one=registered",
		"drop/one=registered", "whole/one=registered")
}
