package pluginclient_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
)

// limitDescriptors leaves this process so many more descriptors than it has.
var limitDescriptors func(left int)

// beHost is the process of a host that runHost starts.
func beHost() {
	kind := os.Getenv(textEnv)
	if err := errors.Join(os.Unsetenv(modeEnv), os.Unsetenv(textEnv)); err != nil { // the plugin would be a host, too
		panic(err)
	}
	c := config("serve")
	var left int
	if kind == "no logger" {
		c = config("logs")
		c.Logger = nil
	} else if _, err := fmt.Sscanf(kind, "%d descriptors", &left); err == nil {
		limitDescriptors(left)
	}
	client := pluginclient.NewClient(c)
	if _, err := client.Client(); err != nil {
		fmt.Println(err)
		client.Kill()
		os.Exit(1)
	}
	announce()
	if kind == "waits" {
		select {}
	}
	client.Kill()
}

// announce says in a file that this process has started.
func announce() {
	if file := os.Getenv(fileEnv); file != "" {
		if err := os.WriteFile(file, fmt.Append(nil, os.Getpid()), 0o600); err != nil {
			panic(err)
		}
	}
}

// runHost returns the command that runs a host with a plugin, whose files for a while are in the directory of TMPDIR.
func runHost(t *testing.T, kind string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), append([]string{modeEnv + "=host", textEnv + "=" + kind}, env...)...)
	return cmd
}

// shortDir makes a temporary directory with a short path.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestNoTempDir: the error names the directory that TMPDIR says.
func TestNoTempDir(t *testing.T) {
	out, err := runHost(t, "", "TMPDIR=/proc").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/proc") || !strings.Contains(string(out), "TMPDIR") {
		t.Errorf("%v, %s", err, out)
	}
}

// TestKilledHost: what a host leaves that is killed is removed by the next one, and what belongs to a running one is not.
func TestKilledHost(t *testing.T) {
	dir := shortDir(t)
	t.Setenv("TMPDIR", dir)
	started := filepath.Join(t.TempDir(), "started")
	killed, running := runHost(t, "waits", fileEnv+"="+started+"1"), runHost(t, "waits", fileEnv+"="+started+"2")
	for i, host := range []*exec.Cmd{killed, running} {
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		defer host.Wait()
		defer host.Process.Kill()
		awaitFile(t, fmt.Sprint(started, i+1))
	}
	if left := entries(t, dir, "pbclient"); len(left) != 2 {
		t.Fatalf("two hosts have %v", left)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	client := newClient(t, config("serve"))
	dispense(t, client)
	if left := entries(t, dir, "pbclient"); len(left) != 2 {
		t.Errorf("one host runs beside this one, and there are %v", left)
	}
	client.Kill()
	if left := entries(t, dir, "pbclient"); len(left) != 1 {
		t.Errorf("one host runs, and there are %v", left)
	}
}

func entries(t *testing.T, dir, prefix string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}
