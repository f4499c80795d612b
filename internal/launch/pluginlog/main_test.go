package pluginlog

import (
	"os"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// roles are what the test binary does instead of testing when it is executed again as a plugin.
var roles = map[string]func(){}

const roleVariable = "PATCHBAY_OUTPUT_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := roles[os.Getenv(roleVariable)]; role != nil {
		role()
		os.Exit(0)
	}
	leaktest.Main(m)
}
