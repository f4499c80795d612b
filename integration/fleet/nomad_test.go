package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// nomads are agents of Nomad on this machine: a server, and a client for each daemon.
type nomads struct {
	t       *testing.T
	program string
	env     []string
	daemons []*daemon
	job     string // the file of the job
	dir     string
}

func newNomads(t *testing.T, program string, daemons ...*daemon) *nomads {
	t.Helper()
	dir, err := os.MkdirTemp("", "pn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mounts, _ := os.ReadFile("/proc/mounts") // agents leave those of their tasks
		for line := range strings.Lines(string(mounts)) {
			if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
				_ = syscall.Unmount(at, 0)
			}
		}
		os.RemoveAll(dir)
	})
	n := &nomads{t: t, program: program, daemons: daemons, dir: dir, job: filepath.Join(dir, "hostdir.nomad.hcl")}
	text, err := os.ReadFile("../../examples/fleet/hostdir.nomad.hcl")
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.NewReplacer("/run/patchbay/", "${meta.patchbay}/", "/usr/bin/patchbay", daemons[0].program,
		"/usr/lib/hostdir/", dir+"/")
	if err := os.WriteFile(n.job, []byte(moved.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	http := n.agent("server", `server { 
  enabled = true
  bootstrap_expect = 1
}`)
	rpc := strings.TrimPrefix(http[1], "http://")
	n.env = append(os.Environ(), "NOMAD_ADDR="+http[0], "NOMAD_CLI_NO_COLOR=1")
	for _, d := range daemons {
		n.agent(d.name, fmt.Sprintf(`client {
  enabled = true
  servers = [%q]
  meta { patchbay = %q }
  options { # nothing is asked over the network
    "fingerprint.denylist" = "env_aws,env_azure,env_digitalocean,env_gce,consul,vault"
  }
}
plugin "raw_exec" {
  config { enabled = true }
}`, rpc, d.dir))
	}
	eventually(t, "the nodes are ready", func() bool {
		printed, err := n.try("node", "status", "-json")
		return err == nil && strings.Count(printed, `"Status": "ready"`) == len(daemons)
	})
	return n
}

// agent starts an agent and returns its addresses: HTTP and RPC.
func (n *nomads) agent(name, more string) [2]string {
	n.t.Helper()
	urls := [3]string{freeURL(n.t, "http"), freeURL(n.t, "http"), freeURL(n.t, "http")}
	port := func(i int) string { return urls[i][strings.LastIndex(urls[i], ":")+1:] }
	text := fmt.Sprintf(`name = %q
data_dir = %q
bind_addr = "127.0.0.1"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
ports {
  http = %s
  rpc  = %s
  serf = %s
}
%s
`, name, filepath.Join(n.dir, name), port(0), port(1), port(2), more)
	file := filepath.Join(n.dir, name+".hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(n.dir, name+".log"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(n.program, "agent", "-config", file)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return [2]string{"http://127.0.0.1:" + port(0), "http://127.0.0.1:" + port(1)}
}

func (n *nomads) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.program, args...)
	cmd.Env = n.env
	printed, err := cmd.CombinedOutput()
	return string(printed), err
}

// TestNomadJob rolls programs through a fleet with the system job of the examples. NOMAD is the program of Nomad.
func TestNomadJob(t *testing.T) {
	nomad := os.Getenv("NOMAD")
	if nomad == "" {
		t.Skip("NOMAD does not say where the program is; bench/nomad parses the job")
	}
	t.Parallel()
	r := newRolled(t, 3)
	for _, d := range r.nodes {
		d.run("stop", "hostdir") // Nomad starts it instead
	}
	n := newNomads(t, nomad, r.nodes...)
	t.Cleanup(func() { // what Nomad started outlives it
		_, _ = n.try("job", "stop", "-purge", "hostdir")
		for _, d := range r.nodes {
			d.run("wait", "CSIPlugin/hostdir.example.com", "--for", "deregistered", "--timeout", patience.String())
		}
	})
	n.run("good-1", r.driver(1, ""), true)
	r.has(1, 1, 1)
	n.run("good-2", r.driver(2, ""), true)
	r.has(2, 2, 2)
	failed := n.run("crashes", r.driver(3, "(sleep 4; kill -9 $$) &"), false)
	for _, d := range r.nodes {
		if d.name != failed[0] {
			r.hasAt(d, 2)
		}
	}
	if printed, err := n.try("job", "stop", "-purge", "hostdir"); err != nil { // as the example says
		t.Fatalf("%v\n%s", err, printed)
	}
	n.run("good-4", r.driver(4, ""), true)
	r.has(4, 4, 4)
}

// run runs a version of the job, waits for the end of its deployment, and returns the nodes that it got to. One that fails got to one node.
func (n *nomads) run(version, text string, good bool) (nodes []string) {
	n.t.Helper()
	program := filepath.Join(n.dir, version, "hostdir")
	err := errors.Join(os.Mkdir(filepath.Dir(program), 0o700), os.WriteFile(program, []byte(text), 0o755))
	if err != nil {
		n.t.Fatal(err)
	}
	job := -1
	for _, a := range n.allocations() {
		job = max(job, a.JobVersion)
	}
	printed, err := n.try("job", "run", "-var", "version="+version, n.job)
	for _, a := range n.allocations() {
		if a.JobVersion == job+1 && !slices.Contains(nodes, a.NodeName) {
			nodes = append(nodes, a.NodeName)
		}
	}
	n.t.Logf("%s: %v, run on %v\n%s", version, err, nodes, printed)
	want := len(n.daemons)
	if !good {
		want = 1
	}
	if (err == nil) != good || len(nodes) != want {
		n.t.Fatalf("%s was started on %v, want %d nodes: %v", version, nodes, want, err)
	}
	return nodes
}

type allocation struct {
	NodeName   string
	JobVersion int
}

func (n *nomads) allocations() (all []allocation) {
	n.t.Helper()
	printed, err := n.try("job", "allocs", "-json", "hostdir")
	if strings.Contains(printed, "No allocations") || strings.Contains(printed, "No job") {
		return nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(printed), &all)
	}
	if err != nil {
		n.t.Fatalf("%v\n%s", err, printed)
	}
	return all
}
