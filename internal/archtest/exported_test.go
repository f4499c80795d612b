package archtest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// implemented are methods that exist for interfaces of the standard library and of libraries, whose callers are not in this repository.
var implemented = []string{
	"Error", "Unwrap", "Is", "As", "GRPCStatus", "String", "LogValue", "Read", "Write", "Close", "ServeHTTP", "Collect", "Describe",
	"MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText", "UnmarshalYAML", "Enabled", "Handle", "WithAttrs", "WithGroup",
}

// untold are packages whose examples are compiled and not run: what is to be shown takes the *testing.T of a test.
var untold = []string{"sdk/sdktest", "dynamicplugins/statetest"}

// exported are the exported names of a package that need a user. Members of types stand under the name of their type, a dot, and their own.
type exported struct {
	dir   string // relative to the root of the repository
	names map[string]token.Position
}

// TestExportedNamesAreUsed finds exported names that nobody uses but their own package and its tests: what nobody needs is not a promise to
// keep. The user of a documented name or option may be a runnable example beside it.
//
// It reads the source of all modules of the repository without a type checker, and so goes by names. Of fields and methods it sees the name
// alone: one passes for used if a package that imports theirs, however indirectly, uses any member of that name, or if some interface has
// a method of that name, or if a value of another type is converted to theirs elsewhere, which sets all fields. It does not look at constants of an exported type, at fields with a tag, nor at methods that libraries call
// ([implemented]): they may have no user.
func TestExportedNamesAreUsed(t *testing.T) {
	all, used := readNames(t)
	checked, unused := 0, 0
	for _, e := range all {
		for _, name := range slices.Sorted(maps.Keys(e.names)) {
			checked++
			if !used.has(e.dir, name) {
				unused++
				t.Errorf("%s: %s.%s has no user outside its package and its tests: unexport it, delete it, or, if it is documented, give it a "+
					"runnable example", e.names[name], e.dir, name)
			}
		}
	}
	if checked < 1000 {
		t.Errorf("%d exported names were found, want over 1,000: the test is broken", checked)
	}
	t.Logf("%d exported names, %d without a user", checked, unused)
}

// readNames reads the exported names of this module's packages and the names that the sources of all modules use.
func readNames(t *testing.T) ([]exported, *uses) {
	t.Helper()
	files := token.NewFileSet()
	var all []exported
	used := newUses()
	err := filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if base := entry.Name(); dir != root && (base == "testdata" || strings.HasPrefix(base, ".")) {
			return filepath.SkipDir
		}
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		e := exported{filepath.ToSlash(relative), map[string]token.Position{}}
		for _, path := range paths {
			file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			isTest := strings.HasSuffix(path, "_test.go")
			used.scan(e.dir, file, isTest, isTest && strings.HasPrefix(filepath.Base(path), "example"))
			if !isTest && !ast.IsGenerated(file) && file.Name.Name != "main" {
				e.collect(files, file)
			}
		}
		if len(e.names) > 0 && inMainModule(dir) {
			all = append(all, e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	used.resolve()
	return all, used
}

// inMainModule says that no directory between dir and the root has a go.mod.
func inMainModule(dir string) bool {
	for ; dir != root; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return false
		}
	}
	return true
}

// collect adds the exported names that a file declares.
func (e *exported) collect(files *token.FileSet, file *ast.File) {
	add := func(name string, pos token.Pos) { e.names[name] = files.Position(pos) }
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			receiver := ""
			if d.Recv != nil {
				receiver = receiverName(d.Recv.List[0].Type)
				if !ast.IsExported(receiver) || slices.Contains(implemented, d.Name.Name) {
					continue
				}
				receiver += "."
			}
			if d.Name.IsExported() {
				add(receiver+d.Name.Name, d.Pos())
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					// The values of a type of the package go with the type.
					kind, _ := s.Type.(*ast.Ident)
					inherited := d.Tok == token.CONST && s.Type == nil && s.Values == nil
					if inherited || kind != nil && d.Tok == token.CONST && kind.IsExported() {
						continue
					}
					for _, name := range s.Names {
						if name.IsExported() {
							add(name.Name, name.Pos())
						}
					}
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						add(s.Name.Name, s.Pos())
						collectFields(s, add)
					}
				}
			}
		}
	}
}

// collectFields adds the exported fields of a struct that are not written and read by an encoder.
func collectFields(s *ast.TypeSpec, add func(string, token.Pos)) {
	structure, ok := s.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range structure.Fields.List {
		for _, name := range field.Names {
			if name.IsExported() && field.Tag == nil {
				add(s.Name.Name+"."+name.Name, name.Pos())
			}
		}
	}
}

func receiverName(expr ast.Expr) string {
	switch x := expr.(type) {
	case *ast.StarExpr:
		return receiverName(x.X)
	case *ast.IndexExpr:
		return receiverName(x.X)
	case *ast.IndexListExpr:
		return receiverName(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// TestPublicPackagesHaveExamples looks for a runnable example of each package that a user can import.
func TestPublicPackagesHaveExamples(t *testing.T) {
	found := 0
	for _, p := range packages(t) {
		internal := slices.Contains(strings.Split(p.path, "/"), "internal")
		exempt := slices.Contains(untold, p.path)
		if internal || exempt || p.name == "main" || isGeneratedAPI(p.path) {
			continue
		}
		found++
		if !hasRunnableExample(t, filepath.Join(root, p.path)) {
			t.Errorf("%s has no runnable example: show in its example_test.go what a user would write, and the output", p.path)
		}
	}
	if found < 15 {
		t.Errorf("%d public packages were found: the test is broken", found)
	}
}

func isGeneratedAPI(path string) bool {
	return strings.HasPrefix(path, "api/") || strings.HasPrefix(path, "pluginwatcher/example_plugin_apis/")
}

func hasRunnableExample(t *testing.T, dir string) bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, example := range doc.Examples(file) {
			if example.Output != "" {
				return true
			}
		}
	}
	return false
}
