//go:build unix

package supervise

import (
	"os"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// socketVariable names the socket at which the test binary, run as a plugin, serves health checks.
const socketVariable = "PATCHBAY_SUPERVISE_TEST_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(socketVariable); socket != "" {
		serveHealth(socket)
		return
	}
	leaktest.Main(m)
}
