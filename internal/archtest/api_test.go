package archtest

import (
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var (
	updateAPI = flag.Bool("update", false, "write testdata/api.txt, unless a stable package loses something")
	breaking  = flag.Bool("breaking", false, "with -update: write it although a stable package loses something")
)

const (
	apiFile       = "testdata/api.txt"
	stabilityPage = "docs/reference/stability.md"
)

// isPublic says that users may import a package.
func isPublic(p pkg) bool {
	parts := strings.Split(p.path, "/")
	return p.name != "main" && !slices.Contains(parts, "internal") && parts[0] != "examples"
}

// stabilities returns what the page says of each package: its first word.
func stabilities(t *testing.T) map[string]string {
	t.Helper()
	said := map[string]string{}
	for name, cells := range rows(read(t, stabilityPage), "Packages") {
		said[name] = strings.Fields(cells[0])[0]
	}
	return said
}

// TestStabilityIsSaid: every package that users may import is stable, or settling, or internal to the project, and the page says which.
func TestStabilityIsSaid(t *testing.T) {
	said := stabilities(t)
	for _, p := range packages(t) {
		name := strings.TrimSuffix("patchbay/"+p.path, "/.")
		if !isPublic(p) {
			continue
		}
		if !slices.Contains([]string{"stable", "settling", "none"}, said[name]) {
			t.Errorf("%s says %q of %s: say stable, settling or none", stabilityPage, said[name], name)
		}
		delete(said, name)
	}
	for name := range said {
		t.Errorf("%s tells of %s, which is no package that users may import", stabilityPage, name)
	}
}

// TestAPI compares the exported API with testdata/api.txt, a line for each function, type, field, method, constant and variable.
func TestAPI(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT TESTED: the file describes the API on Linux")
	}
	now := describeAPI(t)
	said := strings.Split(strings.TrimSuffix(read(t, "internal/archtest/"+apiFile), "\n"), "\n")
	stability := stabilities(t)
	broken := false
	for _, line := range said {
		if slices.Contains(now, line) {
			continue
		}
		name, what, _ := strings.Cut(line, ": ")
		if stability[name] == "stable" {
			broken = true
			t.Errorf("%s, which is stable, has no longer: %s\nRestore it, deprecated if need be. Before 1.0 alone: run this test with "+
				"-update -breaking, and say what to do instead in CHANGELOG.md.", name, what)
		}
	}
	if *updateAPI && (!broken || *breaking) {
		if err := os.WriteFile(apiFile, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !slices.Equal(now, said) {
		added, removed := without(now, said), without(said, now)
		t.Errorf("the exported API has changed: if that is meant, run this test with -update and commit %s\nadded:\n%s\nremoved:\n%s", apiFile,
			strings.Join(added, "\n"), strings.Join(removed, "\n"))
	}
}

// without returns the lines of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

// publicPackages reads what the compiler exports of each public package, by the name of the package in the API file.
func publicPackages(t *testing.T) map[string]*types.Package {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", "./...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	public := map[string]*types.Package{}
	for _, p := range packages(t) {
		if !isPublic(p) || isGeneratedAPI(p.path) {
			continue
		}
		imported, err := imports.Import(filepath.ToSlash(filepath.Join(modulePath, p.path)))
		if err != nil {
			t.Fatal(err)
		}
		public[strings.TrimSuffix("patchbay/"+p.path, "/.")] = imported
	}
	return public
}

// describeAPI returns a line for each entry of the exported API.
func describeAPI(t *testing.T) (lines []string) {
	t.Helper()
	for name, p := range publicPackages(t) {
		for _, line := range describePackage(p) {
			lines = append(lines, name+": "+line)
		}
	}
	slices.Sort(lines)
	if len(lines) < 500 {
		t.Fatalf("%d lines describe the API: the test is broken", len(lines))
	}
	return lines
}

func describePackage(p *types.Package) (lines []string) {
	qualify := func(other *types.Package) string {
		if other == p {
			return ""
		}
		return strings.TrimPrefix(other.Path(), modulePath+"/")
	}
	for _, name := range p.Scope().Names() {
		object := p.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		switch o := object.(type) {
		case *types.Func:
			lines = append(lines, "func "+name+signature(o.Signature(), qualify))
		case *types.Const:
			lines = append(lines, fmt.Sprintf("const %s %s = %s", name, types.TypeString(o.Type(), qualify), o.Val()))
		case *types.Var:
			lines = append(lines, "var "+name+" "+types.TypeString(o.Type(), qualify))
		case *types.TypeName:
			lines = append(lines, describeType(o, qualify)...)
		}
	}
	return lines
}

// describeType describes a type, its exported fields and its methods; those of an alias are the ones of what it stands for.
func describeType(o *types.TypeName, qualify types.Qualifier) []string {
	underlying := o.Type().Underlying()
	kind := types.TypeString(underlying, qualify)
	lines := []string{}
	switch u := underlying.(type) {
	case *types.Struct:
		kind = "struct"
		for field := range u.Fields() {
			if field.Exported() {
				lines = append(lines, fmt.Sprintf("field %s.%s %s", o.Name(), field.Name(), types.TypeString(field.Type(), qualify)))
			}
		}
	case *types.Interface:
		for method := range u.Methods() {
			lines = append(lines, "interface method "+o.Name()+"."+method.Name()+signature(method.Signature(), qualify))
		}
		return append(lines, "type "+o.Name()+" interface")
	}
	if o.IsAlias() {
		kind = "= " + types.TypeString(types.Unalias(o.Type()), qualify)
	}
	methods := types.NewMethodSet(types.NewPointer(types.Unalias(o.Type())))
	for method := range methods.Methods() {
		if f, ok := method.Obj().(*types.Func); ok && f.Exported() {
			lines = append(lines, "method "+o.Name()+"."+f.Name()+signature(f.Signature(), qualify))
		}
	}
	return append(lines, "type "+o.Name()+" "+kind)
}

// signature writes a signature without the names of its parameters, which are nobody's promise.
func signature(s *types.Signature, qualify types.Qualifier) string {
	unnamed := func(tuple *types.Tuple) *types.Tuple {
		var all []*types.Var
		for v := range tuple.Variables() {
			all = append(all, types.NewParam(token.NoPos, nil, "", v.Type()))
		}
		return types.NewTuple(all...)
	}
	bare := types.NewSignatureType(nil, nil, nil, unnamed(s.Params()), unnamed(s.Results()), s.Variadic())
	text := strings.TrimPrefix(types.TypeString(bare, qualify), "func")
	if s.TypeParams().Len() > 0 {
		var parameters []string
		for p := range s.TypeParams().TypeParams() {
			parameters = append(parameters, p.Obj().Name()+" "+types.TypeString(p.Constraint(), qualify))
		}
		return "[" + strings.Join(parameters, ", ") + "]" + text
	}
	return text
}

// TestNoInternalTypesInTheAPI finds internal types in what public packages export: pkg.go.dev shows neither the fields nor the methods of
// such a type, and users cannot name it.
func TestNoInternalTypesInTheAPI(t *testing.T) {
	for name, p := range publicPackages(t) {
		var found []string
		for _, member := range p.Scope().Names() {
			if o := p.Scope().Lookup(member); o.Exported() {
				found = append(found, internalTypes(o)...)
			}
		}
		if len(found) > 0 {
			t.Errorf("%s exports internal types: %s", name, strings.Join(found, ", "))
		}
	}
}

// internalTypes returns where an exported object has an internal type, and which.
func internalTypes(o types.Object) (found []string) {
	report := func(where string, t types.Type) {
		if name := internalIn(t); name != "" {
			found = append(found, where+" "+name)
		}
	}
	name, isType := o.(*types.TypeName)
	if !isType {
		report(o.Name(), o.Type())
		return found
	}
	if alias, ok := name.Type().(*types.Alias); ok {
		report(o.Name(), alias.Rhs())
		return found
	}
	switch u := name.Type().Underlying().(type) {
	case *types.Struct:
		for field := range u.Fields() {
			where := o.Name() + "." + field.Name()
			switch {
			case field.Exported() && isInternal(field.Pkg()):
				found = append(found, where+" "+field.Pkg().Path()) // the struct is declared as one of an internal package
			case field.Exported() || field.Embedded():
				report(where, field.Type())
			}
		}
	case *types.Interface:
		for method := range u.Methods() {
			report(o.Name()+"."+method.Name(), method.Signature())
		}
	default:
		report(o.Name(), u)
	}
	if named, ok := name.Type().(*types.Named); ok {
		for method := range named.Methods() {
			if method.Exported() {
				report(o.Name()+"."+method.Name(), method.Signature())
			}
		}
		for parameter := range named.TypeParams().TypeParams() {
			report(o.Name(), parameter.Constraint())
		}
	}
	return found
}

// internalIn returns the first internal type of this module that a type is made of; empty if there is none.
func internalIn(t types.Type) string {
	inTuple := func(tuple *types.Tuple) (found string) {
		for v := range tuple.Variables() {
			if found == "" {
				found = internalIn(v.Type())
			}
		}
		return found
	}
	inList := func(list *types.TypeList) (found string) {
		for t := range list.Types() {
			if found == "" {
				found = internalIn(t)
			}
		}
		return found
	}
	name := func(o *types.TypeName, arguments *types.TypeList) string {
		if isInternal(o.Pkg()) {
			return strings.TrimPrefix(o.Pkg().Path(), modulePath+"/") + "." + o.Name()
		}
		return inList(arguments)
	}
	switch t := t.(type) {
	case *types.Alias:
		return name(t.Obj(), t.TypeArgs())
	case *types.Named:
		return name(t.Obj(), t.TypeArgs())
	case interface{ Elem() types.Type }: // pointer, slice, array, channel, map
		if m, ok := t.(*types.Map); ok {
			if found := internalIn(m.Key()); found != "" {
				return found
			}
		}
		return internalIn(t.Elem())
	case *types.Signature:
		for parameter := range t.TypeParams().TypeParams() {
			if found := internalIn(parameter.Constraint()); found != "" {
				return found
			}
		}
		if found := inTuple(t.Params()); found != "" {
			return found
		}
		return inTuple(t.Results())
	case *types.Struct:
		for field := range t.Fields() {
			if found := internalIn(field.Type()); field.Exported() && found != "" {
				return found
			}
		}
	case *types.Interface:
		for method := range t.Methods() {
			if found := internalIn(method.Signature()); found != "" {
				return found
			}
		}
	}
	return ""
}

// isInternal reports whether a package is one of this module that users cannot import.
func isInternal(p *types.Package) bool {
	return p != nil && strings.HasPrefix(p.Path(), modulePath+"/") && slices.Contains(strings.Split(p.Path(), "/"), "internal")
}
