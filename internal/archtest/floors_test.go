package archtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// plan is the floor plan: the floor of each package, or of each pattern that ends in "/...", by path relative to the module.
type plan map[string]int

var (
	header  = regexp.MustCompile(`^\|\s*floor\s*\|\s*package\s*\|`)
	divider = regexp.MustCompile(`^\|[\s:|-]+\|$`)
	named   = regexp.MustCompile("^`([^`]+)`( \\(root\\))?$")
)

// parsePlan reads the floor plan from the one Markdown table whose first two columns are "floor" and "package". A floor is a number.
// The second column lists packages in backquotes, separated by commas; "(root)" behind the name marks the root package.
func parsePlan(markdown string) (plan, error) {
	p := plan{}
	inTable := false
	for i, line := range strings.Split(markdown, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case header.MatchString(line):
			if len(p) > 0 {
				return nil, fmt.Errorf("line %d: a second floor table", i+1)
			}
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !divider.MatchString(line):
			if err := p.addRow(line); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
	}
	if len(p) == 0 {
		return nil, fmt.Errorf("no table that begins with | floor | package |")
	}
	return p, nil
}

func (p plan) addRow(row string) error {
	cells := strings.Split(row, "|")
	if len(cells) < 4 {
		return fmt.Errorf("row %q has no column for packages", row)
	}
	floor, err := strconv.Atoi(strings.TrimSpace(cells[1]))
	if err != nil || floor < 0 {
		return fmt.Errorf("floor %q is not a number", strings.TrimSpace(cells[1]))
	}
	for name := range strings.SplitSeq(cells[2], ",") {
		match := named.FindStringSubmatch(strings.TrimSpace(name))
		if match == nil {
			return fmt.Errorf("package %q is not one name in backquotes", strings.TrimSpace(name))
		}
		path := match[1]
		if match[2] != "" {
			path = "."
		}
		if _, ok := p[path]; ok {
			return fmt.Errorf("package %s has two floors", path)
		}
		p[path] = floor
	}
	return nil
}

// find returns the entry for a package: the package itself, or the longest pattern that it matches.
func (p plan) find(path string) (entry string, ok bool) {
	if _, ok := p[path]; ok {
		return path, true
	}
	for candidate := range p {
		prefix, isPattern := strings.CutSuffix(candidate, "/...")
		if isPattern && (path == prefix || strings.HasPrefix(path, prefix+"/")) && len(candidate) > len(entry) {
			entry = candidate
		}
	}
	return entry, entry != ""
}

// check returns what is wrong, as sentences: imports that do not point down, packages without a floor, floors without a package.
func (p plan) check(packages []pkg) []string {
	var wrong []string
	unused := maps.Clone(p)
	for _, from := range packages {
		fromEntry, ok := p.find(from.path)
		if !ok {
			wrong = append(wrong, fmt.Sprintf("%s is not in the floor plan", from.path))
			continue
		}
		delete(unused, fromEntry)
		for _, to := range slices.Sorted(maps.Keys(from.imports)) {
			toEntry, ok := p.find(to)
			if !ok {
				continue // Said for the package itself.
			}
			if fromFloor, toFloor := p[fromEntry], p[toEntry]; toFloor >= fromFloor && fromEntry != toEntry {
				wrong = append(wrong, fmt.Sprintf("%s (floor %d) imports %s (floor %d)", from.path, fromFloor, to, toFloor))
			}
		}
	}
	for _, entry := range slices.Sorted(maps.Keys(unused)) {
		wrong = append(wrong, fmt.Sprintf("%s is in the floor plan and does not exist", entry))
	}
	return wrong
}

func TestImportsPointDown(t *testing.T) {
	document, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePlan(string(document))
	if err != nil {
		t.Fatalf("ARCHITECTURE.md: %v", err)
	}
	for _, wrong := range p.check(packages(t)) {
		t.Errorf("%s: change the code, or the floor plan in ARCHITECTURE.md with the reason", wrong)
	}
}

const examplePlan = `
| word | meaning |
|---|---|
| floor | no row of the plan |

| floor | package | what it is |
|------:|---------|---|
| 3 | ` + "`patchbay` (root)" + ` | the root |
| 2 | ` + "`top/one`, `top/two`" + ` | two packages |
| 1 | ` + "`base`" + ` | the ground |
| 0 | ` + "`api/...`, `internal/a`" + ` | patterns |

| 9 | no row either |
`

func TestParsePlan(t *testing.T) {
	got, err := parsePlan(examplePlan)
	if err != nil {
		t.Fatal(err)
	}
	want := plan{".": 3, "top/one": 2, "top/two": 2, "base": 1, "api/...": 0, "internal/a": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	for _, bad := range []string{
		"",
		"| floor | package |\n|---|---|\n",
		"| floor | package |\n| first | `a` |",
		"| floor | package |\n| -1 | `a` |",
		"| floor | package |\n| 1 | a |",
		"| floor | package |\n| 1 | `a` `b` |",
		"| floor | package |\n| 1 |",
		"| floor | package |\n| 1 | `a` |\n| 2 | `a` |",
		"| floor | package |\n| 1 | `a` |\n\n| floor | package |\n| 2 | `b` |",
	} {
		if p, err := parsePlan(bad); err == nil {
			t.Errorf("parsePlan(%q) = %v, want an error", bad, p)
		}
	}
}

func TestPlanCheck(t *testing.T) {
	p, err := parsePlan(examplePlan)
	if err != nil {
		t.Fatal(err)
	}
	imports := func(path string, imports ...string) pkg {
		set := map[string]bool{}
		for _, i := range imports {
			set[i] = true
		}
		return pkg{path: path, imports: set}
	}
	got := p.check([]pkg{
		imports(".", "top/one", "base"),
		imports("top/one", "top/two", "."),
		imports("base", "api/x/v1", "internal/a"),
		imports("internal/a", "api/x/v1", "base"),
		imports("api/x/v1"),
		imports("apiary"),
	})
	want := []string{
		"top/one (floor 2) imports . (floor 3)",
		"top/one (floor 2) imports top/two (floor 2)",
		"internal/a (floor 0) imports api/x/v1 (floor 0)",
		"internal/a (floor 0) imports base (floor 1)",
		"apiary is not in the floor plan",
		"top/two is in the floor plan and does not exist",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("check (-want +got):\n%s", diff)
	}
}

// served are the groups of internal packages and who may import them: whom they serve, and tools and tests that look at the same things.
// Where discovery and launching meet is internal/entrance and internal/journal, which the root wires.
var served = map[string][]string{
	"internal/discover": {".", "internal/discover", "internal/entrance", "internal/journal", "pluginwatcher", "daemon", "reconciler", "verify"},
	"internal/launch":   {".", "internal/launch", "internal/entrance", "host", "launcher", "sdk", "verify", "internal/command/doctor", "daemon"},
	"internal/command":  {"internal/command", "cmd/patchbay"},
}

func TestGroupsServeTheirOwn(t *testing.T) {
	within := func(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
	for _, p := range packages(t) {
		for imported := range p.imports {
			for group, importers := range served {
				if within(imported, group) && !slices.ContainsFunc(importers, func(dir string) bool { return within(p.path, dir) }) {
					t.Errorf("%s imports %s, and %s does not serve it: move what both need out of the group", p.path, imported, group)
				}
			}
		}
	}
}
