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

// plan says where packages belong, by path relative to the module, or by pattern that ends in "/...".
type plan struct {
	places map[string]place
	// mayImport are the groups that each group imports, by their lower-case names; nil means all.
	mayImport map[string][]string
}

type place struct {
	layer int
	group string
}

// helpers is the group of packages that only tests import, in any group and layer.
const helpers = "test helpers"

var (
	groupHeading = regexp.MustCompile(`^### ([^:]+): .*; imports (.+)$`)
	tableHeader  = regexp.MustCompile(`^\|\s*layer\s*\|\s*package\s*\|`)
	divider      = regexp.MustCompile(`^\|[\s:|-]+\|$`)
	packageName  = regexp.MustCompile("^`([^`]+)`( \\(root\\))?$")
)

// parsePlan reads the Markdown tables whose first two columns are "layer" and "package". A layer is a number. The second column lists
// packages in backquotes, separated by commas; "(root)" after the name marks the root package. Each table belongs to the group of the
// heading "### NAME: …; imports NAME, NAME" above it, which says what other groups the group imports, or "all" or "none".
func parsePlan(markdown string) (plan, error) {
	p := plan{map[string]place{}, map[string][]string{}}
	inTable, group := false, ""
	for i, line := range strings.Split(markdown, "\n") {
		line = strings.TrimSpace(line)
		heading := groupHeading.FindStringSubmatch(line)
		switch {
		case heading != nil:
			group = strings.ToLower(heading[1])
			p.mayImport[group] = parseGroups(heading[2])
		case tableHeader.MatchString(line):
			if group == "" {
				return plan{}, fmt.Errorf("line %d: the table belongs to no group", i+1)
			}
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !divider.MatchString(line):
			if err := p.addRow(line, group); err != nil {
				return plan{}, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
	}
	if len(p.places) == 0 {
		return plan{}, fmt.Errorf("no table that begins with | layer | package |")
	}
	return p, nil
}

func parseGroups(names string) []string {
	switch names {
	case "all":
		return nil
	case "none":
		return []string{}
	}
	return strings.Split(names, ", ")
}

func (p plan) addRow(row, group string) error {
	cells := strings.Split(row, "|")
	if len(cells) < 4 {
		return fmt.Errorf("row %q has no column for packages", row)
	}
	layer, err := strconv.Atoi(strings.TrimSpace(cells[1]))
	if err != nil || layer < 0 {
		return fmt.Errorf("layer %q is not a number", strings.TrimSpace(cells[1]))
	}
	for name := range strings.SplitSeq(cells[2], ",") {
		match := packageName.FindStringSubmatch(strings.TrimSpace(name))
		if match == nil {
			return fmt.Errorf("package %q is not one name in backquotes", strings.TrimSpace(name))
		}
		path := match[1]
		if match[2] != "" {
			path = "."
		}
		if _, ok := p.places[path]; ok {
			return fmt.Errorf("package %s has two layers", path)
		}
		p.places[path] = place{layer, group}
	}
	return nil
}

// find returns the entry for a package: the package itself, or the longest pattern that it matches.
func (p plan) find(path string) (entry string, ok bool) {
	if _, ok := p.places[path]; ok {
		return path, true
	}
	for candidate := range p.places {
		prefix, isPattern := strings.CutSuffix(candidate, "/...")
		if isPattern && (path == prefix || strings.HasPrefix(path, prefix+"/")) && len(candidate) > len(entry) {
			entry = candidate
		}
	}
	return entry, entry != ""
}

// check returns what is wrong, as sentences: imports that do not point down, packages without a layer, layers without a package.
func (p plan) check(packages []pkg) []string {
	var wrong []string
	unused := maps.Clone(p.places)
	for _, from := range packages {
		entry, ok := p.find(from.path)
		if !ok {
			wrong = append(wrong, fmt.Sprintf("%s is not in the plan", from.path))
			continue
		}
		delete(unused, entry)
		for _, to := range slices.Sorted(maps.Keys(from.imports)) {
			wrong = append(wrong, p.checkImport(from, entry, to)...)
		}
	}
	for _, entry := range slices.Sorted(maps.Keys(unused)) {
		wrong = append(wrong, fmt.Sprintf("%s is in the plan and does not exist", entry))
	}
	return wrong
}

// checkImport checks the import of a package by another, whose entry is given.
func (p plan) checkImport(from pkg, entry, to string) (wrong []string) {
	toEntry, ok := p.find(to)
	if !ok {
		return nil // The package itself is reported.
	}
	above, below := p.places[entry], p.places[toEntry]
	if below.group == helpers {
		if above.group != helpers && from.imports[to] {
			wrong = append(wrong, fmt.Sprintf("%s imports %s, which is for tests", from.path, to))
		}
		return wrong
	}
	if below.layer >= above.layer && entry != toEntry {
		wrong = append(wrong, fmt.Sprintf("%s (layer %d) imports %s (layer %d)", from.path, above.layer, to, below.layer))
	}
	if may := p.mayImport[above.group]; above.group != below.group && may != nil && !slices.Contains(may, below.group) {
		wrong = append(wrong, fmt.Sprintf("%s (%s) imports %s (%s)", from.path, above.group, to, below.group))
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
		t.Errorf("%s: change the code, or the tables in ARCHITECTURE.md with the reason", wrong)
	}
}

const examplePlan = `
| word | meaning |
|---|---|
| layer | no row of the plan |

### Roof: what is above; imports all

| layer | package | what it is |
|------:|---------|---|
| 3 | ` + "`patchbay` (root)" + ` | the root |

### Middle: what is between; imports ground

| layer | package | what it is |
|------:|---------|---|
| 2 | ` + "`top/one`, `top/two`" + ` | two packages |
| 1 | ` + "`base`" + ` | the lower one |

### Ground: what is below; imports none

| layer | package |
|---|---|
| 0 | ` + "`api/...`, `internal/a`" + ` | patterns |

### Test helpers: what tests import; imports none

| layer | package |
|---|---|
| 0 | ` + "`internal/help`" + ` |

| 9 | no row either |
`

func TestParsePlan(t *testing.T) {
	got, err := parsePlan(examplePlan)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]place{
		".": {3, "roof"}, "top/one": {2, "middle"}, "top/two": {2, "middle"}, "base": {1, "middle"},
		"api/...": {0, "ground"}, "internal/a": {0, "ground"}, "internal/help": {0, "test helpers"},
	}
	if diff := cmp.Diff(want, got.places, cmp.AllowUnexported(place{})); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	const group = "### S: s; imports none\n"
	for _, bad := range []string{
		"",
		group + "| layer | package |\n|---|---|\n",
		group + "| layer | package |\n| first | `a` |",
		group + "| layer | package |\n| -1 | `a` |",
		group + "| layer | package |\n| 1 | a |",
		group + "| layer | package |\n| 1 | `a` `b` |",
		group + "| layer | package |\n| 1 |",
		group + "| layer | package |\n| 1 | `a` |\n| 2 | `a` |",
		"| layer | package |\n| 1 | `a` |",
		"### S: s\n| layer | package |\n| 1 | `a` |",
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
			test, isTest := strings.CutSuffix(i, " in a test")
			set[test] = !isTest
		}
		return pkg{path: path, imports: set}
	}
	got := p.check([]pkg{
		imports(".", "top/one", "base"),
		imports("top/one", "top/two", ".", "base"),
		imports("base", "api/x/v1", "internal/a"),
		imports("internal/a", "api/x/v1", "base", "internal/help in a test"),
		imports("api/x/v1", "internal/help"),
		imports("internal/help", "base in a test"),
		imports("apiary"),
	})
	want := []string{
		"top/one (layer 2) imports . (layer 3)",
		"top/one (middle) imports . (roof)",
		"top/one (layer 2) imports top/two (layer 2)",
		"internal/a (layer 0) imports api/x/v1 (layer 0)",
		"internal/a (layer 0) imports base (layer 1)",
		"internal/a (ground) imports base (middle)",
		"api/x/v1 imports internal/help, which is for tests",
		"internal/help (layer 0) imports base (layer 1)",
		"internal/help (test helpers) imports base (middle)",
		"apiary is not in the plan",
		"top/two is in the plan and does not exist",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("check (-want +got):\n%s", diff)
	}
}
