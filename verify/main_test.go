//go:build linux

package verify

import (
	"os"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// fakeEnv names the plugin as which the test binary runs when it is executed again.
const fakeEnv = "VERIFY_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if name := os.Getenv(fakeEnv); name != "" {
		playProcess(name)
		return
	}
	leaktest.Main(m)
}
