//go:build unix

package supervise

import (
	"os"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// socketVariable makes the test binary a plugin that offers health at the socket that it names.
const socketVariable = "PATCHBAY_SUPERVISE_TEST_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(socketVariable); socket != "" {
		serveHealth(socket)
		return
	}
	leaktest.Main(m)
}
