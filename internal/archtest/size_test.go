package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFileLines = 500
	maxFuncLines = 60 // of its body
)

// TestNothingIsLong keeps functions and files within what can be read at once: of tests the files, as they have tables. Generated code is left
// out.
func TestNothingIsLong(t *testing.T) {
	for _, p := range packages(t) {
		files, err := filepath.Glob(filepath.Join(root, p.path, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			checkLength(t, file)
		}
	}
}

func checkLength(t *testing.T, path string) {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(file) {
		return
	}
	line := func(pos token.Pos) int { return files.Position(pos).Line }
	if n := line(file.FileEnd); n > maxFileLines {
		t.Errorf("%s has %d lines, at most %d are allowed: it is about more than one thing", path, n, maxFileLines)
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil || strings.HasSuffix(path, "_test.go") {
			continue
		}
		if n := line(f.Body.Rbrace) - line(f.Body.Lbrace) - 1; n > maxFuncLines {
			t.Errorf("%s:%d: %s has %d lines, at most %d are allowed: it does more than one thing", path, line(f.Pos()), f.Name.Name, n, maxFuncLines)
		}
	}
}
