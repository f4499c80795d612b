// Package catalogue validates the plugins that a host may launch, which are the entries under "plugins" in the configuration. [Diff]
// compares two catalogues, so that a reload does not disturb unchanged plugins.
//
// The package does not access files: the host checks whether a command exists, has the expected digest and may run as a user.
package catalogue

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Catalogue is an immutable set of plugins with different names. Its methods are safe for concurrent use and return copies. A nil Catalogue
// is empty.
type Catalogue struct {
	plugins map[string]entry // by name
}

// entry is a plugin and its index in the argument of New.
type entry struct {
	plugin Plugin
	index  int
}

// New validates plugins and returns their catalogue. An error joins a [FieldError] for each problem.
func New(plugins []Plugin) (*Catalogue, error) {
	c, err := Usable(plugins)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Usable is like [New], but returns, even with an error, the catalogue of the valid plugins. It is never nil.
func Usable(plugins []Plugin) (*Catalogue, error) {
	c := &Catalogue{plugins: map[string]entry{}}
	var wrong []error
	var invalid []string // names of plugins that are removed at the end, so that duplicates of their names are found
	for i := range plugins {
		p := clone(plugins[i])
		p.SHA256 = strings.ToLower(p.SHA256)
		problems := p.problems(i)
		wrong = append(wrong, problems...)
		if other, known := c.plugins[p.Name]; known {
			err := fmt.Errorf("the name %q is that of plugins[%d] too: give each plugin its own", p.Name, other.index)
			wrong = append(wrong, &FieldError{Index: i, Name: p.Name, Field: "name", Err: err})
			continue
		}
		c.plugins[p.Name] = entry{p, i}
		if len(problems) > 0 {
			invalid = append(invalid, p.Name)
		}
	}
	for _, name := range invalid {
		delete(c.plugins, name)
	}
	return c, errors.Join(wrong...)
}

// Lookup returns the plugin with a name.
func (c *Catalogue) Lookup(name string) (p Plugin, found bool) {
	if c == nil {
		return Plugin{}, false
	}
	e, found := c.plugins[name]
	return clone(e.plugin), found
}

// Index returns the index of the plugin with a name in the argument of [New], for errors about the plugin.
func (c *Catalogue) Index(name string) int {
	if c == nil {
		return 0
	}
	return c.plugins[name].index
}

// List returns all plugins, sorted by name.
func (c *Catalogue) List() []Plugin {
	if c == nil {
		return nil
	}
	list := make([]Plugin, 0, len(c.plugins))
	for _, name := range slices.Sorted(maps.Keys(c.plugins)) {
		list = append(list, clone(c.plugins[name].plugin))
	}
	return list
}

// Changes is the difference between two catalogues. Each list is sorted by name.
type Changes struct {
	// Added and Changed are from the later catalogue, Removed is from the earlier one.
	Added, Removed, Changed []Plugin
}

// Diff compares two catalogues.
func Diff(before, after *Catalogue) Changes {
	var c Changes
	for _, now := range after.List() {
		was, known := before.Lookup(now.Name)
		switch {
		case !known:
			c.Added = append(c.Added, now)
		case !reflect.DeepEqual(was, now):
			c.Changed = append(c.Changed, now)
		}
	}
	for _, was := range before.List() {
		if _, known := after.Lookup(was.Name); !known {
			c.Removed = append(c.Removed, was)
		}
	}
	return c
}

// clone returns a deep copy. Empty maps and lists become nil, so that equal plugins are deeply equal.
func clone(p Plugin) Plugin {
	p.Command = slices.Clone(p.Command)
	p.GoPlugin.ProtocolVersions = append([]int(nil), p.GoPlugin.ProtocolVersions...)
	p.Metadata = cloneMap(p.Metadata)
	p.Env = cloneMap(p.Env)
	return p
}

func cloneMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}
