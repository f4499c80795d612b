package pluginclient_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	library "github.com/hashicorp/go-plugin"
)

// TestTable: the guide has a row for each field, method and error of the library that a host can touch, and each row has a test.
func TestTable(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/go-plugin.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| in go-plugin | here | test |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	tests := declared(t, "*_test.go")
	listed := map[string]bool{}
	name := regexp.MustCompile("`([^`]+)`")
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 3 {
			t.Fatalf("%d cells: %s", len(cells), row)
		}
		for _, field := range name.FindAllStringSubmatch(cells[0], -1) {
			listed[field[1]] = true
		}
		shown := name.FindAllStringSubmatch(cells[2], -1)
		if len(shown) == 0 {
			t.Errorf("no test: %s", row)
		}
		for _, test := range shown {
			if !tests[test[1]] {
				t.Errorf("there is no %s: %s", test[1], row)
			}
		}
	}
	for _, want := range append(touched(), errorsOf(t)...) {
		if !listed[want] {
			t.Errorf("the table has no %s", want)
		}
	}
}

// touched returns the fields and methods that a host can touch.
func touched() []string {
	var names []string
	for prefix, value := range map[string]any{
		"": library.ClientConfig{}, "Cmd.": exec.Cmd{}, "ReattachConfig.": library.ReattachConfig{}, "SecureConfig.": library.SecureConfig{},
		"UnixSocketConfig.": library.UnixSocketConfig{}, "GRPCClient.": library.GRPCClient{},
	} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(value)) {
			// Those of these types have rows of their own.
			if field.IsExported() && !field.Anonymous && prefix+field.Name != "Cmd" && field.Name != "SecureConfig" && field.Name != "UnixSocketConfig" {
				names = append(names, prefix+field.Name)
			}
		}
	}
	for prefix, of := range map[string]reflect.Type{
		"Client.": reflect.TypeFor[*library.Client](), "ClientProtocol.": reflect.TypeFor[library.ClientProtocol](),
	} {
		for i := range of.NumMethod() {
			names = append(names, prefix+of.Method(i).Name)
		}
	}
	return append(names, "NewClient", "CleanupClients", "Killed")
}

// errorsOf returns the names of the library's errors.
func errorsOf(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/hashicorp/go-plugin").Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range declared(t, filepath.Join(strings.TrimSpace(string(out)), "client.go")) {
		if strings.HasPrefix(name, "Err") {
			names = append(names, name)
		}
	}
	return names
}

// declared returns the names that Go files declare.
func declared(t *testing.T, pattern string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				names[decl.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if value, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range value.Names {
							names[name.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}
