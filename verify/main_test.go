//go:build linux

package verify

import (
	"os"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// fakeEnv tells the re-executed test binary which plugin to be.
const fakeEnv = "VERIFY_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if name := os.Getenv(fakeEnv); name != "" {
		playProcess(name)
		return
	}
	leaktest.Main(m)
}
