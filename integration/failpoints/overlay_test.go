//go:build linux

package failpoints

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"go.etcd.io/gofail/code"
)

// source is the module whose files have the points.
const source = "../.."

// marked is a file with points.
type marked struct {
	path   string // from the root of the module, with slashes
	points []string
	// text has code in the place of the comments, and binding makes the points known to the runtime of gofail; it belongs beside the file.
	text, binding []byte
}

// findPoints returns the files that have points, in the order of their paths.
func findPoints() ([]marked, error) {
	var found []marked
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			// A module of its own is not part of the program.
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != source || strings.HasPrefix(entry.Name(), ".git") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		m, err := mark(path)
		if err == nil && len(m.points) > 0 {
			found = append(found, m)
		}
		return err
	})
	return found, err
}

// mark reads a file and makes code of its points.
func mark(path string) (marked, error) {
	comments, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(comments, []byte("// gofail:")) {
		return marked{}, err
	}
	rel, err := filepath.Rel(source, path)
	if err != nil {
		return marked{}, err
	}
	var text, binding bytes.Buffer
	points, err := code.ToFailpoints(&text, bytes.NewReader(comments))
	if err != nil {
		return marked{}, fmt.Errorf("%s: %w", path, err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, comments, parser.PackageClauseOnly)
	if err != nil {
		return marked{}, err
	}
	m := marked{path: filepath.ToSlash(rel), text: text.Bytes()}
	for _, p := range points {
		m.points = append(m.points, p.Name())
	}
	err = code.NewBinding(file.Name.Name, points).Write(&binding)
	m.binding = binding.Bytes()
	return m, err
}

// writeOverlay writes the files that have points, and what belongs beside them, into a directory, and returns the path of what
// "go build -overlay" takes.
func writeOverlay(dir string) (string, error) {
	files, err := findPoints()
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	put := func(path string, content []byte) error {
		target, err := filepath.Abs(filepath.Join(source, path))
		if err != nil {
			return err
		}
		replace[target] = filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		return os.WriteFile(replace[target], content, 0o600)
	}
	for _, m := range files {
		// What follows an underscore may be the name of a system, for which alone the file is; it stays the last.
		folder, name := filepath.Split(filepath.FromSlash(m.path))
		if err := errors.Join(put(m.path, m.text), put(filepath.Join(folder, "failpoints_"+name), m.binding)); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// rerunEnv is set for tests that were compiled with the points.
const rerunEnv = "PATCHBAY_TEST_FAILPOINTS"

// rerun compiles these tests with the points and runs them with the same arguments. It returns their exit code.
func rerun() (int, error) {
	dir, err := os.MkdirTemp("", "patchbay-failpoints")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir)
	if err != nil {
		return 0, err
	}
	program := filepath.Join(dir, "failpoints.test")
	// Without what debuggers need it is a third smaller, and the daemon copies and reads it whole again and again.
	args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program}
	if raced() {
		args = append(args, "-race")
	}
	build := exec.CommandContext(context.Background(), "go", append(args, ".")...)
	if output, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", build, err, output)
	}
	tests := exec.CommandContext(context.Background(), program, os.Args[1:]...)
	tests.Env = append(os.Environ(), rerunEnv+"=1")
	tests.Stdin, tests.Stdout, tests.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = tests.Run()
	if tests.ProcessState == nil {
		return 0, err
	}
	return tests.ProcessState.ExitCode(), nil
}

// raced says whether this program has the race detector.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
