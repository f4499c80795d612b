package integration

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

const hostdirID = "CSIPlugin/hostdir.example.com"

// buildExamples builds programs of ../examples and csi-sanity into bin, once.
var buildExamples = sync.OnceValue(func() error {
	ctx := context.Background()
	return errors.Join(
		programs.Build(ctx, "../examples", bin, programs.Raced, "./hostdir", "./hello", "./admission"),
		programs.Build(ctx, ".", bin, false, "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"),
	)
})

// startHostdir starts the example driver on a socket. Volumes are attached as it likes where the test runs, unless it is told.
func startHostdir(t *testing.T, socket, root string, args ...string) *process {
	t.Helper()
	if err := buildExamples(); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--socket", socket, "--root", root, "--node-id", "node-1", "--capacity", "1099511627776"}, args...)
	return start(t, nil, "hostdir", args...)
}

var (
	sanityRan    = regexp.MustCompile(`Ran (\d+) of`)
	sanityPassed = regexp.MustCompile(`SUCCESS!.* (\d+) Passed`)
)

// sanity runs csi-sanity with an endpoint for both services, or with one for each.
func sanity(t *testing.T, endpoint, controllerEndpoint string) {
	t.Helper()
	dir := shortTempDir(t)
	args := []string{
		"-ginkgo.no-color", "-csi.endpoint", "unix://" + endpoint,
		"-csi.mountdir", filepath.Join(dir, "mount"), "-csi.stagingdir", filepath.Join(dir, "staging"),
	}
	if controllerEndpoint != "" {
		args = append(args, "-csi.controllerendpoint", "unix://"+controllerEndpoint)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	output, err := exec.CommandContext(ctx, filepath.Join(bin, "csi-sanity"), args...).CombinedOutput()
	ran, passed := sanityRan.FindSubmatch(output), sanityPassed.FindSubmatch(output)
	if err != nil || ran == nil || passed == nil || !bytes.Equal(ran[1], passed[1]) || len(ran[1]) < 2 {
		t.Fatalf("csi-sanity: %v\n%s", err, output)
	}
	t.Logf("csi-sanity passed %s checks", passed[1])
}

// shortTempDir makes a directory whose path leaves room for the name of a socket.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestHostdirPassesCSISanity(t *testing.T) {
	for _, attach := range []string{"auto", "link"} {
		t.Run(attach, func(t *testing.T) {
			d := startDaemon(t)
			root := t.TempDir()
			socket := filepath.Join(d.dir, "hostdir.sock")
			p := startHostdir(t, socket, root, "--attach", attach)
			d.wait(hostdirID, "registered")
			sanity(t, socket, "")
			if left, err := filepath.Glob(filepath.Join(root, "volumes", "*")); err != nil || len(left) > 0 {
				t.Errorf("csi-sanity left %v, %v", left, err)
			}
			checkLife(t, d, p, plugin{
				Type: "CSIPlugin", Name: "hostdir.example.com", Version: "1.13.0", Versions: []string{"1.13.0"},
				Endpoint: socket, SocketPath: socket,
			})
		})
	}
}

func TestHostdirIsVerified(t *testing.T) {
	if err := buildExamples(); err != nil {
		t.Fatal(err)
	}
	verify(t, filepath.Join(bin, "hostdir"), "--socket", "{socket}", "--root", "{tmp}/root", "--node-id", "node-1")
}

// The driver behind the stable sockets of a daemon: one for the node and one for the controller, or one for all of it.
func TestHostdirPassesCSISanityThroughStableSockets(t *testing.T) {
	dispense := filepath.Join(shortTempDir(t), "dispense")
	d := startDaemonWith(t, "--handler", "CSIPlugin=csi", "--dispense-dir", dispense)
	startHostdir(t, filepath.Join(d.dir, "hostdir.sock"), t.TempDir())
	d.wait(hostdirID, "registered")
	socket := func(role string) string { return filepath.Join(dispense, role, "hostdir.example.com.sock") }
	sanity(t, socket("csi-node"), socket("csi-controller"))
	sanity(t, socket("CSIPlugin"), "")
}
