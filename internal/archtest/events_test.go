package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const eventsPage = "docs/reference/events.md"

// ofCode are words of doc comments that say nothing to who reads events.
var ofCode = regexp.MustCompile(`; see [A-Z]\S*|\[|\]`)

// TestEventsReference: docs/reference/events.md lists every kind of event, with the comment of its constant.
func TestEventsReference(t *testing.T) {
	events := map[string]string{}
	for _, dir := range []string{"internal/discover/machine", "internal/discover/pipeline", "internal/journal", "launcher", "host", "daemon"} {
		paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if !strings.HasSuffix(path, "_test.go") {
				maps.Copy(events, eventsIn(t, path))
			}
		}
	}
	if len(events) < 20 {
		t.Fatalf("%d kinds of events were found: the test is broken", len(events))
	}
	var page strings.Builder
	page.WriteString("<!-- Made of the source: go test ./internal/archtest -run TestEventsReference -update -->\n\n# Events\n\n" +
		"The kinds that `patchbay events`, the log (key `event`), the file of events and `WatchEvents` of the control API tell of.\n\n" +
		"| kind | what happened |\n|---|---|\n")
	for _, kind := range slices.Sorted(maps.Keys(events)) {
		fmt.Fprintf(&page, "| `%s` | %s |\n", kind, events[kind])
	}
	path := filepath.Join(root, eventsPage)
	if *updateAPI {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != page.String() {
		t.Errorf("%s is not current (%v): run this test with -update", eventsPage, err)
	}
}

// eventsIn returns the kinds of events that a file declares, and what each means.
func eventsIn(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found, said := map[string]string{}, "" // the last comment may be for several
	ast.Inspect(file, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			return true
		}
		for _, spec := range decl.Specs {
			s := spec.(*ast.ValueSpec)
			if len(s.Values) != 1 || !isEventKind(s.Type) {
				continue
			}
			literal, ok := s.Values[0].(*ast.BasicLit)
			if !ok {
				continue
			}
			kind, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			comment := s.Doc.Text()
			if comment == "" && !decl.Lparen.IsValid() {
				comment = decl.Doc.Text()
			}
			if comment != "" {
				said = comment
			}
			found[kind] = meaning(said, s.Names[0].Name)
		}
		return true
	})
	return found
}

// meaning is what a comment says of one constant: all of it, or the part that begins with its name.
func meaning(comment, name string) string {
	comment = strings.Join(strings.Fields(comment), " ")
	if _, part, ok := strings.Cut(comment, " "+name+": "); ok {
		return part
	}
	comment = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(comment, name), ":"))
	return ofCode.ReplaceAllString(regexp.MustCompile(` Event\w+: .*`).ReplaceAllString(comment, ""), "")
}

func isEventKind(typ ast.Expr) bool {
	switch x := typ.(type) {
	case *ast.Ident:
		return x.Name == "EventKind"
	case *ast.SelectorExpr:
		return x.Sel.Name == "EventKind"
	}
	return false
}
