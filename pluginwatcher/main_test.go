package pluginwatcher_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// pluginSocket, in the environment, makes the test binary a plugin of type T and name foo on the socket that it names. Its child keeps the
// listening socket open.
const pluginSocket = "PATCHBAY_TEST_PLUGIN_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(pluginSocket); path != "" {
		servePlugin(path)
	}
	goleak.VerifyTestMain(m)
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
