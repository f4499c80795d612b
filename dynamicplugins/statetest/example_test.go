package statetest_test

import (
	"path/filepath"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/dynamicplugins/statetest"
)

// A storage of your own has a test with this body; that of boltstate is an example of one.
func ExampleTest() {
	testStorage := func(t *testing.T) {
		statetest.Test(t, func(dir string) (dynamicplugins.StateStorage, error) {
			return boltstate.Open(filepath.Join(dir, "state.db"))
		})
	}
	_ = testStorage // go test calls it, as TestStorage
}
