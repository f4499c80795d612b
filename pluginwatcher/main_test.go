package pluginwatcher_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// pluginSocket, in the environment, makes the test binary a plugin of type T and name foo on the socket that it names. Its child keeps the
// listening socket open.
const pluginSocket = "PATCHBAY_TEST_PLUGIN_SOCKET"

// pluginAs, in the environment too, makes it one of another type and name, TYPE/NAME, without a child, until its standard input ends.
const pluginAs = "PATCHBAY_TEST_PLUGIN_AS"

func TestMain(m *testing.M) {
	if announced := os.Getenv(pluginAs); announced != "" {
		ptype, name, _ := strings.Cut(announced, "/")
		servePluginAs(ptype, name, os.Getenv(pluginSocket))
	}
	if path := os.Getenv(pluginSocket); path != "" {
		servePlugin(path)
	}
	leaktest.Main(m)
}

// servePluginAs serves and says so, and what it is told; it never returns.
func servePluginAs(ptype, name, path string) {
	p := pluginwatcher.NewTestExamplePlugin(name, ptype, path, "v1beta1")
	if err := p.Serve("v1beta1"); err != nil {
		panic(err)
	}
	fmt.Println("serving")
	go func() {
		for status := range p.Statuses() {
			fmt.Printf("told %t %s\n", status.PluginRegistered, status.Error)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// servePlugin serves, says the PID of the child that inherited the listening socket, and never returns.
func servePlugin(path string) {
	p := pluginwatcher.NewTestExamplePlugin("foo", "T", path, "v1beta1")
	if err := p.Serve("v1beta1"); err != nil {
		panic(err)
	}
	child := exec.Command("sleep", "600")
	inherit(child)
	if err := child.Start(); err != nil {
		panic(err)
	}
	fmt.Println(child.Process.Pid)
	select {}
}
