package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/regular"
)

// dropInDir is a directory next to the configuration file. The daemon reads its files *.yaml after that file.
const dropInDir = "conf.d"

// Sources are the sources of a configuration. Later ones override earlier ones.
type Sources struct {
	Defaults Config
	// File is the path of the configuration file; empty for neither file nor drop-ins.
	File string
	// Optional is true if File may be missing. Drop-ins are read in either case.
	Optional bool
	// Over are the settings of the environment, followed by those of the flags.
	Over []Setting
}

// Loaded is a configuration that was read from its sources.
type Loaded struct {
	// Config is the merged configuration.
	Config
	// Catalogue has the plugins of Config; nil for none, or if a value has the wrong form.
	Catalogue *catalogue.Catalogue
	// Files are the paths of the files that were read, in order.
	Files []string

	files   *node             // the merged files
	origins map[string]Origin // by path; without entries for defaults
}

// Load reads the files and merges all sources. An error is of type [Errors] and lists everything that is wrong, unless a file cannot be
// read. Load returns a configuration together with such an error unless a file is not YAML: a value of the wrong form is replaced by its
// default, and invalid plugins are left out.
func Load(s Sources) (*Loaded, error) {
	paths, err := s.paths()
	if err != nil {
		return nil, err
	}
	l := &Loaded{Config: s.Defaults, files: newMap(defaultOrigin)}
	var errs Errors
	unreadable := false
	for _, path := range paths {
		text, err := regular.Read(path)
		if s.Optional && path == s.File && isMissing(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the config file: %w", err)
		}
		tree, wrong := parse(path, text)
		errs = append(errs, wrong...)
		if unreadable = unreadable || tree == nil; !unreadable {
			l.files = merge(l.files, tree)
			l.Files = append(l.Files, path)
		}
	}
	if unreadable {
		return nil, errs
	}
	if errs = errs.with(l.finish(s.Over)); len(errs) > 0 {
		return l, errs
	}
	return l, nil
}

// Parse reads a configuration from text, for example the output of [Loaded.Shown]. Errors refer to the text by name.
func Parse(name string, text []byte, defaults Config) (*Loaded, error) {
	tree, wrong := parse(name, text)
	if len(wrong) > 0 {
		return nil, wrong
	}
	l := &Loaded{Config: defaults, files: merge(newMap(defaultOrigin), tree)}
	if wrong := l.finish(nil); len(wrong) > 0 {
		return nil, wrong
	}
	return l, nil
}

// finish merges the settings over the files, decodes the result and returns all errors in it.
func (l *Loaded) finish(over []Setting) Errors {
	tree := newMap(defaultOrigin)
	tree.set("apiVersion", defaultOrigin, newScalar(apiVersion, defaultOrigin))
	tree.set("kind", defaultOrigin, newScalar(configKind, defaultOrigin))
	tree = merge(tree, l.files)
	for _, setting := range over {
		tree = merge(tree, setting.layer())
	}
	l.origins = map[string]Origin{}
	tree.collect("", l.origins)
	d := decoder{}
	d.decode(tree, reflect.ValueOf(&l.Config).Elem(), "", "")
	usable, err := catalogue.Usable(l.Plugins)
	if len(d.errs) == 0 {
		l.Catalogue = usable
	}
	return append(d.errs, l.LocateAll(err)...)
}

// parse parses and checks the text of one file.
func parse(path string, text []byte) (*node, Errors) {
	p := parser{file: path}
	tree := p.parse(text)
	if tree == nil {
		return nil, p.errs
	}
	p.decode(tree, reflect.ValueOf(new(Config)).Elem(), "", "")
	p.errs.Sort()
	return tree, p.errs
}

// paths returns the files to read, in order.
func (s Sources) paths() ([]string, error) {
	if s.File == "" {
		return nil, nil
	}
	paths := []string{s.File}
	dir := filepath.Join(filepath.Dir(s.File), dropInDir)
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil && !isMissing(err) {
		return nil, fmt.Errorf("cannot read the directory of config drop-ins: %w", err)
	}
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, ".") && filepath.Ext(name) == ".yaml" {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths, nil
}

func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// collect adds the origins of a value and of everything in it to origins.
func (n *node) collect(path string, origins map[string]Origin) {
	if n.isNull() {
		return
	}
	if n.origin != defaultOrigin {
		origins[path] = n.origin
	}
	for _, m := range n.members {
		m.collect(join(path, m.key), origins)
	}
	for i, item := range n.items {
		item.collect(fmt.Sprintf("%s[%d]", path, i), origins)
	}
}

// Origin returns the origin of the value with a path such as "log.level" or "plugins[0].name". A value that no source sets has the origin
// of the map or list that contains it.
func (l *Loaded) Origin(path string) Origin {
	for path != "" {
		if origin, known := l.origins[path]; known {
			return origin
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return defaultOrigin
}

// LocateAll adds the origin of the value to each error that err joins. These are of type [FieldError] or [catalogue.FieldError].
func (l *Loaded) LocateAll(err error) (errs Errors) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil // err is nil
	}
	locate := func(path string, err error) {
		errs = append(errs, &Error{l.Origin(path), fmt.Errorf("%s: %w", path, err)})
	}
	for _, err := range joined.Unwrap() {
		if field, ok := errors.AsType[*FieldError](err); ok {
			locate(field.Field, field.Err)
		} else if field, ok := errors.AsType[*catalogue.FieldError](err); ok {
			locate(fmt.Sprintf("plugins[%d].%s", field.Index, field.Field), field.Err)
		}
	}
	errs.Sort()
	return errs
}
