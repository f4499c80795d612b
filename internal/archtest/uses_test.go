package archtest

import (
	"go/ast"
	"path/filepath"
	"strconv"
	"strings"
)

// uses are the names that the sources of the repository use, with the directories of their users.
type uses struct {
	names   map[string]map[string]bool // by "directory.Name": of packages
	members map[string]map[string]bool // by name: of fields and methods, whatever they are of
	called  map[string]map[string]bool // by "directory.Name": functions, and types that something is converted to
	// imports are the packages of this module that a directory imports, without and with its tests.
	imports, testImports map[string]map[string]bool
	reached              map[string]map[string]bool // what reach has found
	// qualified are names after that of a package, or of a variable that is called like one.
	qualified []qualified
	declared  map[string]bool // by "directory.Name": what packages declare
}

type qualified struct{ of, name, user string }

// Users that are not directories.
const (
	anInterface = "an interface"
	anExample   = "an example"
	aSignature  = "a signature"
)

func newUses() *uses {
	return &uses{
		names: map[string]map[string]bool{}, members: map[string]map[string]bool{}, called: map[string]map[string]bool{},
		imports: map[string]map[string]bool{}, testImports: map[string]map[string]bool{}, reached: map[string]map[string]bool{},
		declared: map[string]bool{},
	}
}

func add(to map[string]map[string]bool, name, user string) {
	if to[name] == nil {
		to[name] = map[string]bool{}
	}
	to[name][user] = true
}

// resolve takes qualified names over when all packages are scanned.
func (u *uses) resolve() {
	for _, q := range u.qualified {
		if full := q.of + "." + q.name; u.declared[full] {
			add(u.names, full, q.user)
		} else {
			add(u.members, q.name, q.user)
		}
	}
	u.qualified = nil
}

// declare adds what a declaration adds to its package.
func (u *uses) declare(dir string, decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			u.declared[dir+"."+d.Name.Name] = true
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				u.declared[dir+"."+s.Name.Name] = true
			case *ast.ValueSpec:
				for _, name := range s.Names {
					u.declared[dir+"."+name.Name] = true
				}
			}
		}
	}
}

// has says whether a name of the package in a directory has a user elsewhere.
func (u *uses) has(dir, name string) bool {
	of, member, isMember := strings.Cut(name, ".")
	users := u.names
	if isMember {
		users = u.called
	}
	for user := range users[dir+"."+of] {
		if user != dir {
			return true
		}
	}
	if !isMember {
		return false
	}
	for user := range u.members[member] {
		if user == anInterface || user == dir+anExample || user != dir && u.reach(user)[dir] {
			return true
		}
	}
	return false
}

// reach returns the packages that a directory, with its tests, imports directly or indirectly.
func (u *uses) reach(user string) map[string]bool {
	if u.reached[user] != nil {
		return u.reached[user]
	}
	found := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if !found[dir] {
			found[dir] = true
			for next := range u.imports[dir] {
				visit(next)
			}
		}
	}
	for _, from := range []map[string]bool{u.imports[user], u.testImports[user]} {
		for dir := range from {
			visit(dir)
		}
	}
	u.reached[user] = found
	return found
}

// scan adds what a file in a directory uses. Of a test, only examples and their helpers count as users of the package beside it.
func (u *uses) scan(dir string, file *ast.File, isTest, isExample bool) {
	imports := map[string]string{}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil || path != modulePath && !strings.HasPrefix(path, modulePath+"/") {
			continue
		}
		of := strings.TrimPrefix(strings.TrimPrefix(path, modulePath), "/")
		if of == "" {
			of = "."
		}
		name := filepath.Base(path)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = of
		if isTest {
			add(u.testImports, dir, of)
		} else {
			add(u.imports, dir, of)
		}
	}
	for _, decl := range file.Decls {
		user := dir
		name := ""
		if f, ok := decl.(*ast.FuncDecl); ok {
			name = f.Name.Name
		}
		if isTest && strings.HasPrefix(name, "Example") || isExample && !strings.HasPrefix(name, "Test") {
			user = dir + anExample
		}
		u.declare(dir, decl)
		u.scanDecl(user, dir, decl, imports)
		if !isTest {
			u.scanSignature(dir, decl)
		}
	}
}

func (u *uses) scanDecl(user, dir string, decl ast.Decl, imports map[string]string) {
	ast.Inspect(decl, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && imports[x.Name] != "" {
				u.qualified = append(u.qualified, qualified{imports[x.Name], n.Sel.Name, user})
			} else {
				add(u.members, n.Sel.Name, user)
			}
		case *ast.Ident:
			if user != dir && n.IsExported() { // an example in the package itself
				add(u.names, dir+"."+n.Name, user)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok {
				if x, ok := f.X.(*ast.Ident); ok && imports[x.Name] != "" {
					add(u.called, imports[x.Name]+"."+f.Sel.Name, user)
				}
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				add(u.members, key.Name, user)
			}
		case *ast.InterfaceType:
			for _, method := range n.Methods.List {
				for _, name := range method.Names {
					add(u.members, name.Name, anInterface)
				}
			}
		}
		return true
	})
}

// scanSignature adds the types of the package that an exported declaration mentions: whoever uses it meets them.
func (u *uses) scanSignature(dir string, decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() {
			u.mention(dir, "", d.Type)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					u.mention(dir, s.Name.Name, s.Type)
				}
			case *ast.ValueSpec:
				u.mentionValue(dir, s)
			}
		}
	}
}

// mention adds the types in an expression for a type, except the one that it is of.
func (u *uses) mention(dir, of string, expr ast.Node) {
	ast.Inspect(expr, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr: // a type of another package
			return false
		case *ast.Field: // whose names are no types
			u.mention(dir, of, n.Type)
			return false
		case *ast.Ident:
			if n.IsExported() && n.Name != of {
				add(u.names, dir+"."+n.Name, aSignature)
			}
		}
		return true
	})
}

// mentionValue adds the type of exported variables and constants, as far as it can be seen without a type checker.
func (u *uses) mentionValue(dir string, s *ast.ValueSpec) {
	if !s.Names[0].IsExported() {
		return
	}
	if s.Type != nil {
		u.mention(dir, "", s.Type)
	}
	for _, value := range s.Values {
		ast.Inspect(value, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.FuncLit:
				u.mention(dir, "", n.Type)
				return false
			case *ast.CompositeLit:
				if n.Type != nil {
					u.mention(dir, "", n.Type)
				}
			}
			return true
		})
	}
}
