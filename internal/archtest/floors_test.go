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

// plan is the floor plan: the room of each package, or of each pattern that ends in "/...", by path relative to the module.
type plan struct {
	rooms map[string]room
	// standsOn are the storeys on which each stands, by the first words of its heading; nil stands for all.
	standsOn map[string][]string
}

type room struct {
	floor  int
	storey string
}

var (
	storeys = regexp.MustCompile(`^### ([^:]+): `)
	stands  = regexp.MustCompile(`^Stands on (.+)\.$`)
	header  = regexp.MustCompile(`^\|\s*floor\s*\|\s*package\s*\|`)
	divider = regexp.MustCompile(`^\|[\s:|-]+\|$`)
	named   = regexp.MustCompile("^`([^`]+)`( \\(root\\))?$")
)

// parsePlan reads the floor plan from the Markdown tables whose first two columns are "floor" and "package". A floor is a number. The second
// column lists packages in backquotes, separated by commas; "(root)" behind the name marks the root package. Each table stands in a storey,
// whose heading is "### NAME: …", and which says "Stands on NAME, NAME and NAME.", "Stands on all others." or "Stands on nothing.".
func parsePlan(markdown string) (plan, error) {
	p := plan{map[string]room{}, map[string][]string{}}
	inTable, storey := false, ""
	for i, line := range strings.Split(markdown, "\n") {
		line = strings.TrimSpace(line)
		on := stands.FindStringSubmatch(line)
		heading := storeys.FindStringSubmatch(line)
		switch {
		case heading != nil:
			storey = strings.ToLower(heading[1])
		case on != nil && storey != "":
			p.standsOn[storey] = parseStorey(on[1])
		case header.MatchString(line):
			if _, ok := p.standsOn[storey]; !ok {
				return plan{}, fmt.Errorf("line %d: the table stands in no storey that says what it stands on", i+1)
			}
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !divider.MatchString(line):
			if err := p.addRow(line, storey); err != nil {
				return plan{}, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
	}
	if len(p.rooms) == 0 {
		return plan{}, fmt.Errorf("no table that begins with | floor | package |")
	}
	return p, nil
}

func parseStorey(on string) []string {
	switch on {
	case "all others":
		return nil
	case "nothing":
		return []string{}
	}
	return strings.Split(strings.ReplaceAll(on, " and ", ", "), ", ")
}

func (p plan) addRow(row, storey string) error {
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
		if _, ok := p.rooms[path]; ok {
			return fmt.Errorf("package %s has two floors", path)
		}
		p.rooms[path] = room{floor, storey}
	}
	return nil
}

// find returns the entry for a package: the package itself, or the longest pattern that it matches.
func (p plan) find(path string) (entry string, ok bool) {
	if _, ok := p.rooms[path]; ok {
		return path, true
	}
	for candidate := range p.rooms {
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
	unused := maps.Clone(p.rooms)
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
			above, below := p.rooms[fromEntry], p.rooms[toEntry]
			if below.floor >= above.floor && fromEntry != toEntry {
				wrong = append(wrong, fmt.Sprintf("%s (floor %d) imports %s (floor %d)", from.path, above.floor, to, below.floor))
			}
			if on := p.standsOn[above.storey]; above.storey != below.storey && on != nil && !slices.Contains(on, below.storey) {
				wrong = append(wrong, fmt.Sprintf("%s (%s) imports %s (%s)", from.path, above.storey, to, below.storey))
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

### The roof: what is above

Stands on all others.

| floor | package | what it is |
|------:|---------|---|
| 3 | ` + "`patchbay` (root)" + ` | the root |

### The middle: what is between

Stands on the ground.

| floor | package | what it is |
|------:|---------|---|
| 2 | ` + "`top/one`, `top/two`" + ` | two packages |
| 1 | ` + "`base`" + ` | the lower one |

### The ground: what is below

Stands on nothing.

| floor | package |
|---|---|
| 0 | ` + "`api/...`, `internal/a`" + ` | patterns |

| 9 | no row either |
`

func TestParsePlan(t *testing.T) {
	got, err := parsePlan(examplePlan)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]room{
		".": {3, "the roof"}, "top/one": {2, "the middle"}, "top/two": {2, "the middle"}, "base": {1, "the middle"},
		"api/...": {0, "the ground"}, "internal/a": {0, "the ground"},
	}
	if diff := cmp.Diff(want, got.rooms, cmp.AllowUnexported(room{})); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	const storey = "### S: s\nStands on nothing.\n"
	for _, bad := range []string{
		"",
		storey + "| floor | package |\n|---|---|\n",
		storey + "| floor | package |\n| first | `a` |",
		storey + "| floor | package |\n| -1 | `a` |",
		storey + "| floor | package |\n| 1 | a |",
		storey + "| floor | package |\n| 1 | `a` `b` |",
		storey + "| floor | package |\n| 1 |",
		storey + "| floor | package |\n| 1 | `a` |\n| 2 | `a` |",
		"| floor | package |\n| 1 | `a` |",
		"### S: s\n| floor | package |\n| 1 | `a` |",
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
		imports("top/one", "top/two", ".", "base"),
		imports("base", "api/x/v1", "internal/a"),
		imports("internal/a", "api/x/v1", "base"),
		imports("api/x/v1"),
		imports("apiary"),
	})
	want := []string{
		"top/one (floor 2) imports . (floor 3)",
		"top/one (the middle) imports . (the roof)",
		"top/one (floor 2) imports top/two (floor 2)",
		"internal/a (floor 0) imports api/x/v1 (floor 0)",
		"internal/a (floor 0) imports base (floor 1)",
		"internal/a (the ground) imports base (the middle)",
		"apiary is not in the floor plan",
		"top/two is in the floor plan and does not exist",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("check (-want +got):\n%s", diff)
	}
}
