package supervise_test

import (
	"flag"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/simulate"
)

var mutants = flag.Bool("simulate.mutants", false, "have TestMutants see that the tests find each mutant")

// TestMutants checks that the tests find each fault of testdata/mutants.txt. The simulation finds most of them.
func TestMutants(t *testing.T) {
	if !*mutants {
		t.Skip("make mutants does this")
	}
	all, err := simulate.ReadMutants("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			survives, err := m.Survives(t.Context(), "../../..", t.TempDir(), "-test.skip", "^TestMutants$|^TestHealth", "-test.failfast")
			if err != nil || survives {
				t.Errorf("survives: %t, %v", survives, err)
			}
		})
	}
}
