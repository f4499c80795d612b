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

// dropInDir is the directory, beside the configuration file, whose files *.yaml are read after it.
const dropInDir = "conf.d"

// Sources says what a configuration is made of. What comes later goes before what came earlier.
type Sources struct {
	// Defaults are the values that hold where nothing else is said.
	Defaults Config
	// File is the path of the configuration file; empty for neither file nor drop-ins.
	File string
	// Optional says that the file may be missing. The drop-ins count nevertheless.
	Optional bool
	// Over are the settings of the environment, and then of the flags.
	Over []Setting
}

// Loaded is a configuration whose form is right.
type Loaded struct {
	// Config is what is in force.
	Config Config
	// Catalogue has the plugins of Config.
	Catalogue *catalogue.Catalogue
	// Files are the paths of the files that were read, in order.
	Files []string

	files   *node             // what the files say
	origins map[string]Origin // of every value that is not a default, by path
}

// Load reads the files and merges everything. An error is of type [Errors], with everything that is wrong, unless a file cannot be read.
// If a file is not YAML, no configuration is returned with it. If a value has the wrong form, the configuration has a default there and no
// Catalogue. If only plugins are wrong, the configuration has the others.
func Load(s Sources) (*Loaded, error) {
	paths, err := s.paths()
	if err != nil {
		return nil, err
	}
	l := &Loaded{Config: s.Defaults, files: newMap(Default)}
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

// Parse reads a configuration from a text, such as [Loaded.Shown] makes of one, and names the text in errors.
func Parse(name string, text []byte, defaults Config) (*Loaded, error) {
	tree, wrong := parse(name, text)
	if len(wrong) > 0 {
		return nil, wrong
	}
	l := &Loaded{Config: defaults, files: merge(newMap(Default), tree)}
	if wrong := l.finish(nil); len(wrong) > 0 {
		return nil, wrong
	}
	return l, nil
}

// finish puts the settings over the files, decodes the result and returns everything that is wrong with it.
func (l *Loaded) finish(over []Setting) Errors {
	tree := newMap(Default)
	tree.set("apiVersion", Default, newScalar(apiVersion, Default))
	tree.set("kind", Default, newScalar(configKind, Default))
	tree = merge(tree, l.files)
	for _, setting := range over {
		tree = merge(tree, setting.layer())
	}
	l.origins = map[string]Origin{}
	tree.collect("", l.origins)
	d := decoder{}
	d.decode(tree, reflect.ValueOf(&l.Config).Elem(), "", "")
	usable, err := catalogue.Usable(l.Config.Plugins)
	if len(d.errs) == 0 {
		l.Catalogue = usable
	}
	return append(d.errs, l.LocateAll(err)...)
}

// parse reads the text of one file and checks it on its own.
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

// collect enters the origins of a value and of everything in it.
func (n *node) collect(path string, origins map[string]Origin) {
	if n.isNull() {
		return
	}
	if n.origin != Default {
		origins[path] = n.origin
	}
	for _, m := range n.members {
		m.collect(join(path, m.key), origins)
	}
	for i, item := range n.items {
		item.collect(fmt.Sprintf("%s[%d]", path, i), origins)
	}
}

// Origin says where the value with a path such as "log.level" or "plugins[0].name" comes from; of one that nobody gave, where what it
// belongs to does.
func (l *Loaded) Origin(path string) Origin {
	for path != "" {
		if origin, known := l.origins[path]; known {
			return origin
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return Default
}

// locate adds to an error about the value with a path where that value comes from.
func (l *Loaded) locate(path string, err error) *Error {
	return &Error{l.Origin(path), fmt.Errorf("%s: %w", path, err)}
}

// LocateAll does so for the errors that err joins, of type [FieldError] or [catalogue.FieldError].
func (l *Loaded) LocateAll(err error) (errs Errors) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil // err is nil
	}
	for _, err := range joined.Unwrap() {
		if field, ok := errors.AsType[*FieldError](err); ok {
			errs = append(errs, l.locate(field.Field, field.Err))
		} else if field, ok := errors.AsType[*catalogue.FieldError](err); ok {
			errs = append(errs, l.locate(fmt.Sprintf("plugins[%d].%s", field.Index, field.Field), field.Err))
		}
	}
	errs.Sort()
	return errs
}
