// Package theirs runs the tests of another system against the packages of this repository: [Suite.Run] copies them into a temporary folder,
// changes what a host that moves changes, and compares the results with a list.
package theirs

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Suite is one package of tests of another system.
type Suite struct {
	// Module and Sum name the module that has the tests, if Module has a version, and its checksum. A module without a version is required
	// by the module in whose directory the test runs.
	Module, Sum string
	// From is the folder of the package in the module, and Files are patterns of the files that are copied.
	From  string
	Files []string
	// Beside is a folder of this repository. If it is set, its files, except for tests, are copied into the same package.
	Beside string
	// Also are further files of the package, by name.
	Also map[string]string
	// Edits are the changes of the copied files: old text and new text in turn, as for strings.NewReplacer. It is an error
	// if an old text is not found.
	Edits []string
	// LeftOut has a reason for each test that is not compiled or does not pass. One that passes is an error.
	LeftOut map[string]Reason
	// Apart are the tests that do not use the packages of this repository. They must pass, and are not counted.
	Apart []string
}

// Reason is why a test is left out.
type Reason struct {
	Why string
	// Printed is a part of what the test prints, or the compiler about it, for this reason and no other.
	Printed string
}

// Unexported is the reason of tests of something that is not exported. They are not counted.
var Unexported = Reason{"it tests what is not exported", "undefined"}

// Run runs the tests of s.
func (s Suite) Run(t *testing.T) {
	t.Parallel()
	c := s.copy(t)
	results := c.cut(t)
	c.test(t, results)
	passed, unexported := 0, 0
	for _, test := range slices.Sorted(maps.Keys(results)) {
		result, reason := results[test], s.LeftOut[test]
		switch {
		case result == "pass" && reason.Why != "":
			t.Errorf("%s passes: take it off the list of what is left out (%s)", test, reason.Why)
		case result == "pass":
			passed++
		case reason.Why == "":
			t.Errorf("%s: %s", test, result)
		case !strings.Contains(result+c.prints[test], reason.Printed):
			t.Errorf("%s does not print %q, so the reason is not %q: %s\n%s", test, reason.Printed, reason.Why, result, c.prints[test])
		case reason == Unexported:
			unexported++
		}
	}
	for _, test := range slices.Concat(s.Apart, slices.Collect(maps.Keys(s.LeftOut))) {
		if results[test] == "" {
			t.Errorf("%s is on a list, and there is no such test", test)
		}
	}
	if t.Failed() {
		t.Logf("the last run printed:\n%s", c.printed)
	}
	apart := len(s.Apart)
	t.Logf("%d of %d tests pass, not counting %d of what is not exported and %d that pass without the packages of this repository",
		passed-apart, len(results)-unexported-apart, unexported, apart)
}

// sources is a package of tests that has been copied.
type sources struct {
	name    string            // of the package, relative to the directory in which the test runs
	dir     string            // where the copies are
	files   map[string][]byte // by name: what was copied
	overlay string
	printed []byte
	prints  map[string]string // by test
}

func newSources(t *testing.T) *sources {
	return &sources{
		dir: t.TempDir(), name: "theirs/" + filepath.Base(t.Name()), files: map[string][]byte{}, prints: map[string]string{},
	}
}

// copy copies the package.
func (s Suite) copy(t *testing.T) *sources {
	t.Helper()
	c := newSources(t)
	edited := make([]bool, len(s.Edits))
	from := filepath.Join(s.dir(t), s.From)
	for _, path := range find(t, from, s.Files...) {
		text := string(read(t, path))
		for i := 0; i < len(s.Edits); i += 2 {
			edited[i] = edited[i] || strings.Contains(text, s.Edits[i])
		}
		c.files[filepath.Base(path)] = []byte(strings.NewReplacer(s.Edits...).Replace(text))
	}
	for i := 0; i < len(s.Edits); i += 2 {
		if !edited[i] {
			t.Errorf("no file has %q", s.Edits[i])
		}
	}
	if s.Beside != "" {
		for _, path := range find(t, s.Beside, "*.go") {
			if !strings.HasSuffix(path, "_test.go") {
				c.files[filepath.Base(path)] = read(t, path)
			}
		}
	}
	for name, text := range s.Also {
		c.files[name] = []byte(text)
	}
	c.write(t)
	return c
}

// dir returns the directory of the module that has the tests.
func (s Suite) dir(t *testing.T) string {
	t.Helper()
	var module struct {
		Dir, Sum string
		Error    any
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-json", s.Module)
	if strings.Contains(s.Module, "@") {
		list = exec.CommandContext(t.Context(), "go", "mod", "download", "-json", s.Module)
		list.Dir = t.TempDir() // no module to whose go.sum it could add the checksum
	}
	out, err := list.Output()
	err = errors.Join(err, json.Unmarshal(out, &module)) // the reason of a failed download is in the JSON
	if err != nil || s.Sum != "" && module.Sum != s.Sum {
		t.Fatalf("%s: %v, %v, checksum %q, want %q", list, err, module.Error, module.Sum, s.Sum)
	}
	return module.Dir
}

// write writes the copies, and the overlay that puts them into the directory in which the test runs.
func (c *sources) write(t *testing.T) {
	t.Helper()
	here, err := os.Getwd()
	replace := map[string]string{}
	for name, text := range c.files {
		replace[filepath.Join(here, c.name, name)] = filepath.Join(c.dir, name)
		err = errors.Join(err, os.WriteFile(filepath.Join(c.dir, name), text, 0o600))
	}
	c.overlay = filepath.Join(c.dir, "overlay.json")
	overlay, failed := json.Marshal(map[string]any{"Replace": replace})
	if err := errors.Join(err, failed, os.WriteFile(c.overlay, overlay, 0o600)); err != nil {
		t.Fatal(err)
	}
}

var (
	complaint = regexp.MustCompile(`(?m)^[^\s:]*?([^/\s:]+\.go):(\d+):\d+: (.*)$`)
	function  = regexp.MustCompile(`^func (Test\w+)\(t \*testing\.T\)`)
	imported  = regexp.MustCompile(`^(\s*)(?:[\w.]+ )?(".*")`)
)

// cut compiles the tests and cuts those that the compiler complains about. It returns the first complaint about each.
func (c *sources) cut(t *testing.T) map[string]string {
	t.Helper()
	cut := map[string]string{}
	for range 5 {
		if c.compile(t) == nil {
			return cut
		}
		complaints := complaint.FindAllSubmatch(c.printed, -1)
		if len(complaints) == 0 {
			break
		}
		for _, m := range complaints {
			line, _ := strconv.Atoi(string(m[2]))
			if !c.cutLine(string(m[1]), line, string(m[3]), cut) {
				t.Fatalf("%s does not compile, and not for a test:\n%s", c.name, c.printed)
			}
		}
		c.write(t)
	}
	t.Fatalf("%s does not compile:\n%s", c.name, c.printed)
	return nil
}

// cutLine replaces the test that contains the line by empty lines, or makes the unused import in the line a blank one. It reports whether
// the line is in a test or is such an import.
func (c *sources) cutLine(file string, line int, complaint string, cut map[string]string) bool {
	lines := bytes.Split(c.files[file], []byte("\n"))
	if line > len(lines) {
		return false
	}
	if strings.Contains(complaint, "imported and not used") {
		lines[line-1] = imported.ReplaceAll(lines[line-1], []byte("${1}_ $2"))
		c.files[file] = bytes.Join(lines, []byte("\n"))
		return true
	}
	if len(bytes.TrimSpace(lines[line-1])) == 0 {
		return true // it has been cut for another line
	}
	from := line - 1
	for from > 0 && !bytes.HasPrefix(lines[from], []byte("func ")) && string(lines[from-1]) != "}" {
		from--
	}
	m := function.FindSubmatch(lines[from])
	if m == nil {
		return false
	}
	cut[string(m[1])] = "does not compile: " + complaint
	for i := from; ; i++ {
		end := string(lines[i]) == "}"
		lines[i] = nil
		if end {
			break
		}
	}
	c.files[file] = bytes.Join(lines, []byte("\n"))
	return true
}

// compile compiles the tests, without the race detector, as the programs that are compared with Patchbay are built.
func (c *sources) compile(t *testing.T) error {
	t.Helper()
	// With -e the compiler prints all errors, and not the first ten only.
	flags := []string{"test", "-c", "-o", c.program(), "-gcflags=-e", "-vet=off", "-overlay", c.overlay, "./" + c.name}
	build := exec.CommandContext(t.Context(), "go", flags...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	var err error
	c.printed, err = build.CombinedOutput()
	return err
}

func (c *sources) program() string { return filepath.Join(c.dir, "tests") }

// test runs the tests and adds their results.
func (c *sources) test(t *testing.T, results map[string]string) {
	t.Helper()
	// "go test" would run them in the folder of the package, which does not exist.
	tests := exec.CommandContext(t.Context(), "go", "tool", "test2json", c.program(), "-test.v=test2json", "-test.timeout=10m")
	tests.Dir = c.dir
	list := exec.CommandContext(t.Context(), c.program(), "-test.list", "^Test")
	list.Dir = c.dir
	names, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v", list, err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		results[name] = "does not start"
	}
	out, failed := tests.CombinedOutput()
	c.printed = nil
	for line := range bytes.Lines(out) {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(line, &event) != nil {
			event.Output = string(line)
		}
		c.printed = append(c.printed, event.Output...)
		test, _, isSubtest := strings.Cut(event.Test, "/")
		c.prints[test] += event.Output
		if test == "" || isSubtest {
			continue
		}
		switch event.Action {
		case "run", "pass", "fail", "skip":
			results[test] = event.Action
		}
	}
	// It fails, too, if a test is left out because it fails.
	if failed != nil && !slices.Contains(slices.Collect(maps.Values(results)), "fail") {
		t.Fatalf("the program of the tests: %v\n%s", failed, c.printed)
	}
}

// find returns the paths of the files in a folder that match the patterns. Each must match at least one.
func find(t *testing.T, folder string, patterns ...string) (paths []string) {
	t.Helper()
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no file of %s matches %s: %v", folder, pattern, err)
		}
		paths = append(paths, found...)
	}
	return paths
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
