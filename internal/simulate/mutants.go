package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Mutant is a fault that the product might have.
type Mutant struct{ Name, file, old, new string }

// ReadMutants reads a file of mutants: a line "== NAME | FILE", lines that say why, "-- old", the text as it is, "-- new", the text as it
// is in the mutant.
func ReadMutants(path string) (all []Mutant, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq("\n"+string(text), "\n== ") {
		head, rest, found := strings.Cut(part, "\n-- old\n")
		if !found {
			continue
		}
		title, _, _ := strings.Cut(head, "\n")
		name, file, _ := strings.Cut(title, " | ")
		before, after, found := strings.Cut(rest, "\n-- new\n")
		if !found || file == "" {
			return nil, fmt.Errorf("unknown mutant %q", title)
		}
		all = append(all, Mutant{name, file, before, strings.TrimRight(after, "\n")})
	}
	return all, nil
}

// Survives builds the tests of the package in the working directory with the fault in a file below root, runs those that the arguments
// select, for at most a minute, and says whether they pass. An error says that they could not be built.
func (m Mutant) Survives(ctx context.Context, root, dir string, args ...string) (bool, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return false, err
	}
	file := filepath.Join(root, m.file)
	source, err := os.ReadFile(file)
	if err != nil {
		return false, err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return false, fmt.Errorf("its text is %d times in %s", n, m.file)
	}
	mutated := filepath.Join(dir, filepath.Base(m.file))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
	if err != nil {
		return false, err
	}
	for path, content := range map[string]string{
		mutated: strings.Replace(string(source), m.old, m.new, 1), filepath.Join(dir, "overlay.json"): string(overlay),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return false, err
		}
	}
	program := filepath.Join(dir, "tests")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return false, fmt.Errorf("it cannot be built: %w\n%s", err, out)
	}
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return exec.CommandContext(ctx, program, args...).Run() == nil, nil
}
