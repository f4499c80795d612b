//go:build linux

package failpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	gofail "go.etcd.io/gofail/runtime"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/integration/internal/rig/etcd"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk"
	"github.com/patchbay-dev/patchbay/sdk/admission"
)

const (
	// roleEnv makes the test binary a plugin, the guest or one that is asked for admission, or the process of the daemon.
	roleEnv    = "PATCHBAY_TEST_ROLE"
	admitter   = "admitter"
	daemonRole = "daemon"
	// nameEnv is the name of a plugin that is not the guest, and sceneEnv says to which scene it belongs.
	nameEnv  = "PATCHBAY_TEST_NAME"
	sceneEnv = "PATCHBAY_TEST_SCENE"
)

func TestMain(m *testing.M) {
	if is, err := etcd.Role(); is {
		end(err)
	}
	switch role := os.Getenv(roleEnv); role {
	case guest:
		name := cmp.Or(os.Getenv(nameEnv), guest)
		end(sdk.Serve(context.Background(), sdk.Plugin{
			Type: typeOf(name), Name: name, Versions: []string{"1"},
			Register: func(grpc.ServiceRegistrar) {}, // grpc.health.v1, which the SDK adds, is called
		}))
	case daemonRole:
		end(serveChild())
	case admitter:
		end(admission.Serve(context.Background(), func(context.Context, plugin.Pin, admission.Metadata) error { return nil }))
	}
	if len(gofail.List()) > 0 {
		leaktest.Main(m)
		return
	}
	exitCode, err := 0, errors.New("there are no points in what was compiled with them")
	if os.Getenv(rerunEnv) == "" {
		exitCode, err = rerun()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot test with failpoints:", err)
		exitCode = 1
	}
	os.Exit(exitCode)
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
