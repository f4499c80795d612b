//go:build !linux

package runtime_test

import (
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
