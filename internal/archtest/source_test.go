package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	root       = "../.."
	modulePath = "github.com/patchbay-dev/patchbay"
)

// pkg is one package of the module, as all of its files together describe it, whatever their build constraints are.
type pkg struct {
	path string // relative to the module, "." for its root
	name string
	doc  string // the package comment
	// imports are the packages of this module that its own files import, those of internal tests included. The value is false for a package
	// that only tests import.
	imports map[string]bool
	foreign map[string]bool // the other packages that they import
}

// packages reads the packages of the module from its source. The go command is not asked, because it sees the files of one
// operating system only.
func packages(t *testing.T) []pkg {
	t.Helper()
	var list []pkg
	err := filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if dir != root && !inModule(dir) {
			return filepath.SkipDir
		}
		p, err := readPackage(dir)
		if err == nil && p.name != "" {
			list = append(list, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 2 {
		t.Fatalf("found %d packages under %s, want the module's", len(list), root)
	}
	return list
}

// inModule reports whether the go command would look for packages of this module in the folder.
func inModule(dir string) bool {
	base := filepath.Base(dir)
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return false
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err != nil
}

// readPackage reads the package in one folder. Its name is empty if there is none.
func readPackage(dir string) (pkg, error) {
	relative, err := filepath.Rel(root, dir)
	if err != nil {
		return pkg{}, err
	}
	p := pkg{path: filepath.ToSlash(relative), imports: map[string]bool{}, foreign: map[string]bool{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return pkg{}, err
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return pkg{}, err
		}
		p.add(parsed, strings.HasSuffix(file, "_test.go"))
	}
	return p, nil
}

func (p *pkg) add(file *ast.File, isTest bool) {
	if isTest && strings.HasSuffix(file.Name.Name, "_test") {
		return // An external test package may import whatever it needs.
	}
	if !isTest {
		p.name = file.Name.Name
		p.doc += file.Doc.Text()
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // Not valid Go, which the compiler reports.
		}
		if imported == modulePath {
			imported += "/"
		}
		if relative, ok := strings.CutPrefix(imported, modulePath+"/"); ok {
			relative = path.Clean(relative)
			p.imports[relative] = p.imports[relative] || !isTest
		} else {
			p.foreign[imported] = true
		}
	}
}
