package archtest

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// read returns a file of the module.
func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// requirements are the modules of a go.mod.
func requirements(goMod string) (direct, indirect []string) {
	for _, match := range regexp.MustCompile(`(?m)^(?:require |\t)(\S+) v\S+( // indirect)?$`).FindAllStringSubmatch(goMod, -1) {
		if match[2] == "" {
			direct = append(direct, match[1])
		} else {
			indirect = append(indirect, match[1])
		}
	}
	return slices.Sorted(slices.Values(direct)), slices.Sorted(slices.Values(indirect))
}

// rows are the rows of the tables below a heading of a document, without the first of each: the first cell, without backquotes, and the others.
func rows(document, heading string) map[string][]string {
	_, section, _ := strings.Cut(document, "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	found := map[string][]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if name := strings.Trim(cells[0], "`"); len(cells) > 1 && name != cells[0] {
			found[name] = cells[1:]
		}
	}
	return found
}

// TestDependenciesAreJustified compares docs/reference/dependencies.md with go.mod.
func TestDependenciesAreJustified(t *testing.T) {
	direct, indirect := requirements(read(t, "go.mod"))
	if len(direct) < 10 || len(indirect) < 10 {
		t.Fatalf("go.mod: %d direct and %d indirect requirements were found", len(direct), len(indirect))
	}
	document := read(t, "docs/reference/dependencies.md")
	said := rows(document, "Direct")
	if diff := cmp.Diff(direct, slices.Sorted(maps.Keys(said))); diff != "" {
		t.Errorf("docs/reference/dependencies.md, direct (-go.mod +document):\n%s", diff)
	}
	for module, cells := range said {
		if len(cells) != 4 || slices.Contains(cells, "") {
			t.Errorf("docs/reference/dependencies.md: %s has %q, want why, packages, licence and keeper", module, cells)
		}
	}
	brought := rows(document, "Indirect")
	if diff := cmp.Diff(indirect, slices.Sorted(maps.Keys(brought))); diff != "" {
		t.Errorf("docs/reference/dependencies.md, indirect (-go.mod +document):\n%s", diff)
	}
	for module, cells := range brought {
		if !slices.Contains(direct, strings.Trim(cells[0], "`")) {
			t.Errorf("docs/reference/dependencies.md: %s comes with %s, which is no direct dependency", module, cells[0])
		}
	}
}

// TestComparedVersions looks for the versions that are measured in docs/explanation/comparison.md: what it says of others is true of them.
func TestComparedVersions(t *testing.T) {
	document := read(t, "docs/explanation/comparison.md")
	for name, module := range map[string]string{
		"Kubernetes": "kubelet/go.mod k8s.io/kubernetes", "Nomad": "nomad/go.mod github.com/hashicorp/nomad",
		"go-plugin": "goplugin/go.mod github.com/hashicorp/go-plugin",
	} {
		file, path, _ := strings.Cut(module, " ")
		version := regexp.MustCompile(`(?m)^\s` + regexp.QuoteMeta(path) + ` v(\S+)`).FindStringSubmatch(read(t, "bench/"+file))
		if version == nil {
			t.Fatalf("bench/%s does not require %s", file, path)
		}
		if !strings.Contains(document, name+" "+version[1]) {
			t.Errorf("docs/explanation/comparison.md is not about %s %s, which is measured: read it against that version", name, version[1])
		}
	}
}

// TestClaimsAreTested looks for each test that docs/explanation/threat-model.md names, in all modules.
func TestClaimsAreTested(t *testing.T) {
	document := read(t, "docs/explanation/threat-model.md")
	named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`).FindAllString(document, -1)
	slices.Sort(named)
	named = slices.Compact(named)
	if len(named) < 20 {
		t.Fatalf("docs/explanation/threat-model.md names %d tests", len(named))
	}
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root:
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, match := range declared.FindAllSubmatch(source, -1) {
			there[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range named {
		if !there[name] {
			t.Errorf("docs/explanation/threat-model.md names %s, which does not exist: name the test that shows the claim", name)
		}
	}
	// A claim that no test shows is a wish.
	for heading, least := range map[string]int{"What is defended": 40, "Rights of the daemon": 4} {
		claims := rows(document, heading)
		if len(claims) < least {
			t.Errorf("docs/explanation/threat-model.md has %d rows in %q", len(claims), heading)
		}
		for claim, cells := range claims {
			if !strings.Contains(cells[len(cells)-1], "Test") && !strings.Contains(cells[len(cells)-1], "Fuzz") {
				t.Errorf("docs/explanation/threat-model.md: %q names no test", claim)
			}
		}
	}
}
