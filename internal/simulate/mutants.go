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

// Mutant is a deliberate fault in one file of the product.
type Mutant struct{ Name, file, old, new string }

// ReadMutants reads a file of mutants. Each is a line "== NAME | FILE", a description, a line "-- old", the text to replace, a line
// "-- new" and the replacement.
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

// Survives builds the tests of the package in the working directory with the fault in a file below root. It reports whether the tests that
// args select pass within a minute. An error means that the tests could not be built.
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
		return false, fmt.Errorf("the text to replace occurs %d times in %s", n, m.file)
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
		return false, fmt.Errorf("the mutant does not build: %w\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return exec.CommandContext(ctx, program, args...).Run() == nil, nil
}
