package reconciler_test

import (
	"flag"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var scenarioSeeds = flag.Uint64("simulate.each", perScenario, "the number of seeds with which each named scenario is run")

// TestSimulationScenarios runs every fault that the core ever had as a script of its own, each in many interleavings. The first line says which fault
// it was.
func TestSimulationScenarios(t *testing.T) {
	scenarios, err := txtar.ParseFile("testdata/scenarios.txtar")
	if err != nil || len(scenarios.Files) == 0 {
		t.Fatalf("there are no scenarios: %v", err)
	}
	for _, scenario := range scenarios.Files {
		t.Run(scenario.Name, func(t *testing.T) {
			text := scenario.Data
			s, err := parseScript(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if len(s.steps) == 0 || !strings.HasPrefix(string(text), "# ") {
				t.Fatal("a scenario has steps, and says what it is about")
			}
			for i := range *scenarioSeeds {
				// The first is the one that was found, with the luck that it had.
				if s.seed += i; len(simulate(s, newFigures())) > 0 {
					t.Fatal(explain(s))
				}
			}
		})
	}
}
