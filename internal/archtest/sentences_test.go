package archtest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documented is the documentation of a public package, as godoc shows it.
func documented(t *testing.T, p pkg) (*token.FileSet, *doc.Package) {
	t.Helper()
	set := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(root, p.path, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if file.Name.Name == p.name {
			files = append(files, file)
		}
	}
	d, err := doc.NewFromFiles(set, files, modulePath+"/"+p.path)
	if err != nil {
		t.Fatal(err)
	}
	return set, d
}

// TestExportedNamesHaveASentence: whoever reads the documentation of a package finds what each name means. Values of a group and fields of
// a struct may share a sentence; a field may be explained by its type.
func TestExportedNamesHaveASentence(t *testing.T) {
	checked := 0
	for _, p := range packages(t) {
		if !isPublic(p) || isGeneratedAPI(p.path) {
			continue
		}
		set, d := documented(t, p)
		if !strings.HasPrefix(d.Doc, "Package "+p.name+" ") {
			t.Errorf("%s: the package comment does not begin with \"Package %s\" and what it is for", p.path, p.name)
		}
		complain := func(pos token.Pos, name, comment string) {
			checked++
			if len(strings.Fields(comment)) < 3 {
				t.Errorf("%s: %s has no sentence", set.Position(pos), name)
			}
		}
		for _, f := range d.Funcs {
			complain(f.Decl.Pos(), f.Name, f.Doc)
		}
		checkValues(append(d.Consts, d.Vars...), complain)
		for _, typ := range d.Types {
			complain(typ.Decl.Pos(), typ.Name, typ.Doc)
			checkValues(append(typ.Consts, typ.Vars...), complain)
			for _, f := range append(typ.Funcs, typ.Methods...) {
				if f.Level == 0 && !isImplemented(f.Name) {
					complain(f.Decl.Pos(), typ.Name+"."+f.Name, f.Doc)
				}
			}
		}
	}
	if checked < 500 {
		t.Errorf("%d names were found: the test is broken", checked)
	}
}

func isImplemented(name string) bool {
	for _, known := range implemented {
		if name == known {
			return true
		}
	}
	return false
}

func checkValues(values []*doc.Value, complain func(pos token.Pos, name, comment string)) {
	for _, v := range values {
		for _, spec := range v.Decl.Specs {
			s, ok := spec.(*ast.ValueSpec)
			if !ok || !s.Names[0].IsExported() {
				continue
			}
			complain(s.Pos(), s.Names[0].Name, v.Doc+s.Doc.Text()+s.Comment.Text())
		}
	}
}

// saysHowItFails is what the documentation of a function that returns an error says of it.
var saysHowItFails = regexp.MustCompile(`(?i)\berr|\bfail|\brefus|cannot|\bimplements \[|\bis \w+Context with `)

// TestErrorsAreSaid: a function that returns an error says which, or when; or its type does, for all of them.
func TestErrorsAreSaid(t *testing.T) {
	checked := 0
	for _, p := range packages(t) {
		if !isPublic(p) || isGeneratedAPI(p.path) {
			continue
		}
		set, d := documented(t, p)
		funcs := d.Funcs
		for _, typ := range d.Types {
			funcs = append(funcs, typ.Funcs...)
			if !strings.Contains(typ.Doc, "rror") {
				funcs = append(funcs, typ.Methods...)
			}
		}
		for _, f := range funcs {
			if isImplemented(f.Name) || !returnsError(f.Decl) {
				continue
			}
			checked++
			if !saysHowItFails.MatchString(f.Doc) {
				t.Errorf("%s: %s%s returns an error, and its documentation does not say which", set.Position(f.Decl.Pos()), f.Recv, f.Name)
			}
		}
	}
	if checked < 50 {
		t.Errorf("%d functions were found: the test is broken", checked)
	}
}

func returnsError(f *ast.FuncDecl) bool {
	if f.Type.Results == nil {
		return false
	}
	for _, result := range f.Type.Results.List {
		if name, ok := result.Type.(*ast.Ident); ok && name.Name == "error" {
			return true
		}
	}
	return false
}
