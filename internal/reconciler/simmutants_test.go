package reconciler_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	mutantSeeds = flag.Int("simulate.mutants", 0,
		"have TestMutants see that the simulation finds each mutant within so many seeds; 0: only that each has its text")
	onlyMutant = flag.String("simulate.mutant", "", "only mutants whose names contain this")
)

// mutant is a fault that the product might have.
type mutant struct{ name, file, test, old, new string }

// TestMutants has the simulation find each fault of testdata/mutants.txt. The file is read as: a line "== NAME | FILE", lines that say why,
// "-- old", the text as it is, "-- new", the text as it is in the mutant. With "== NAME | FILE | PACKAGE TEST" that test finds it instead.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range readMutants(t) {
		if !strings.Contains(m.name, *onlyMutant) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(root, m.file))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("its text is %d times in %s", n, m.file)
			}
			if *mutantSeeds == 0 {
				return // make mutants goes on
			}
			dir := t.TempDir()
			mutated := filepath.Join(dir, filepath.Base(m.file))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, m.file): mutated}})
			if err != nil {
				t.Fatal(err)
			}
			for path, content := range map[string]string{
				mutated: strings.Replace(string(source), m.old, m.new, 1), filepath.Join(dir, "overlay.json"): string(overlay),
			} {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			program := filepath.Join(dir, "simulation")
			pkg, test, isTested := strings.Cut(m.test, " ")
			if !isTested {
				pkg = "./internal/reconciler"
			}
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, pkg)
			build.Dir = root
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("it cannot be built: %v\n%s", err, out)
			}
			if !isTested {
				t.Log(hunt(t, program))
				return
			}
			out, err := exec.CommandContext(t.Context(), program, "-test.run", "^"+test+"$").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: "+test) {
				t.Errorf("%s does not find it: %v\n%s", test, err, out)
			}
		})
	}
}

var foundBy = regexp.MustCompile(`found by seed (\d+): (.*)`)

// hunt runs the simulation until it finds what is wrong, and says which seed did.
func hunt(t *testing.T, program string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	hunting := exec.CommandContext(ctx, program, "-test.run", "^TestHunt$", "-test.v", "-simulate.hunt", fmt.Sprint(*mutantSeeds))
	out, err := hunting.CombinedOutput()
	found := foundBy.FindStringSubmatch(string(out))
	switch {
	case found != nil:
		return found[1] + " seeds: " + found[2]
	case strings.Contains(string(out), "--- FAIL: TestHunt/"):
		return fmt.Sprintf("%d seeds, and a named scenario", *mutantSeeds)
	case err == nil:
		t.Errorf("it survives %d seeds", *mutantSeeds)
		return ""
	case ctx.Err() != nil:
		t.Errorf("it survives for five minutes")
		return ""
	}
	return "it does not get far: " + string(out[max(0, len(out)-300):])
}

var huntSeeds = flag.Uint64("simulate.hunt", 0, "the number of seeds of TestHunt")

// TestHunt is what TestMutants runs in each mutant.
func TestHunt(t *testing.T) {
	for seed := uint64(1); seed <= *huntSeeds; seed++ {
		if wrong := simulate(draw(seed), newFigures()); len(wrong) > 0 {
			first, _, _ := strings.Cut(wrong[0], "\n")
			t.Fatalf("found by seed %d: %s", seed, first)
		}
	}
	if *huntSeeds > 0 {
		TestSimulationScenarios(t)
	}
}

func readMutants(t *testing.T) (all []mutant) {
	text, err := os.ReadFile("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq("\n"+string(text), "\n== ") {
		head, rest, found := strings.Cut(part, "\n-- old\n")
		if !found {
			continue
		}
		title, _, _ := strings.Cut(head, "\n")
		name, file, _ := strings.Cut(title, " | ")
		file, test, _ := strings.Cut(file, " | ")
		before, after, found := strings.Cut(rest, "\n-- new\n")
		if !found || file == "" {
			t.Fatalf("%q is no mutant", title)
		}
		all = append(all, mutant{name, file, test, before, strings.TrimRight(after, "\n")})
	}
	return all
}
