package fleet_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// rolled is a fleet of daemons, each of which launches the program "hostdir" of its own directory.
type rolled struct {
	t     *testing.T
	nodes []*daemon
	ssh   string
	n     int // programs that were written
}

func newRolled(t *testing.T, nodes int) *rolled {
	t.Helper()
	etcd, patchbay := startOne(t), program(t, "patchbay")
	r := &rolled{t: t, ssh: filepath.Join(t.TempDir(), "ssh")}
	for i := range nodes {
		d := newDaemon(t, patchbay, fmt.Sprintf("node-%d", i+1), etcd.client)
		d.configure("pluginDirs:", fmt.Sprintf("plugins: [{name: hostdir, command: [%s/hostdir], startTimeout: 30s}]\npluginDirs:", d.dir))
		r.write(filepath.Join(d.dir, "hostdir"), r.driver(1, ""))
		d.start()
		d.run("wait", "CSIPlugin/hostdir.example.com", "--timeout", patience.String())
		r.nodes = append(r.nodes, d)
	}
	// What stands for ssh enters the directory of the node.
	script := "#!/bin/sh\nnode=$1; shift\ncase $node in\n"
	for _, d := range r.nodes {
		script += fmt.Sprintf("%s) cd %[2]s; export PATCHBAY_CONTROL_SOCKET=%[2]s/control.sock;;\n", d.name, d.dir)
	}
	r.write(r.ssh, script+"esac\nexec sh -c \"$*\"\n")
	return r
}

// driver returns a program that is the driver hostdir with a capacity, which tells one version from another.
func (r *rolled) driver(capacity int, before string) string {
	return fmt.Sprintf("#!/bin/sh\n%s\nexec %s --root %s --capacity %d \"$@\"\n", before, program(r.t, "hostdir"), r.t.TempDir(), capacity)
}

func (r *rolled) write(file, text string) {
	r.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

// roll runs the example with a new program.
func (r *rolled) roll(text string) (printed string, err error) {
	r.t.Helper()
	r.n++
	file := filepath.Join(r.t.TempDir(), fmt.Sprintf("program-%d", r.n))
	r.write(file, text)
	cmd := exec.Command("../../examples/fleet/roll.sh", "hostdir", "CSIPlugin/hostdir.example.com", file, "hostdir")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(r.nodes[0].program)+":"+os.Getenv("PATH"), "SSH="+r.ssh, "SOAK=4",
		"PATCHBAY_CONTROL_SOCKET="+filepath.Join(r.nodes[0].dir, "control.sock"))
	output, err := cmd.CombinedOutput()
	r.t.Logf("roll.sh: %v\n%s", err, output)
	return string(output), err
}

// has waits until the nodes have these capacities.
func (r *rolled) has(want ...int) {
	r.t.Helper()
	for i, d := range r.nodes {
		r.hasAt(d, want[i])
	}
}

func (r *rolled) hasAt(d *daemon, want int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%s has version %d", d.name, want), func() bool {
		answer, err := d.try("call", "CSIPlugin/hostdir.example.com", "csi.v1.Controller/GetCapacity")
		return err == nil && strings.Contains(answer, fmt.Sprintf(`"availableCapacity":"%d"`, want))
	})
}

// TestRoll rolls programs through a fleet with the script of the examples: a good one gets to all nodes, and a bad one to the first and no
// further.
func TestRoll(t *testing.T) {
	t.Parallel()
	r := newRolled(t, 4)
	r.has(1, 1, 1, 1)
	if _, err := r.roll(r.driver(2, "")); err != nil {
		t.Fatal("a good version is not rolled out")
	}
	r.has(2, 2, 2, 2)
	for what, bad := range map[string]string{
		"exits immediately":           "#!/bin/sh\nexit 1\n",
		"crashes after it registered": r.driver(3, "(sleep 2; kill -9 $$) &"),
	} {
		printed, err := r.roll(bad)
		if err == nil || !strings.Contains(printed, "node-1: hostdir did not become healthy") || strings.Contains(printed, "node-2") {
			t.Errorf("a version that %s: %v\n%s", what, err, printed)
		}
		r.has(2, 2, 2, 2)
	}

	// At the third node only.
	half, err := r.roll("#!/bin/sh\ncase $0 in " + r.nodes[2].dir + "/*) exit 1;; esac\n" + r.driver(4, ""))
	if err == nil || !strings.Contains(half, "node-3: hostdir did not become healthy") || strings.Contains(half, "node-4") {
		t.Errorf("a version that does not work at the third node: %v\n%s", err, half)
	}
	r.has(4, 4, 2, 2)
}
