// Package catalogue describes the plugins that a host may launch: the entries under "plugins" in the configuration, validated and
// immutable. It also compares two catalogues, so that a host can switch to the next one without touching unchanged plugins.
//
// It launches nothing and reads no files: the host checks whether a command exists, has the expected digest and may run as a user.
package catalogue

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Catalogue is a set of plugins with different names. It does not change: its methods are safe for concurrent use, and what they return
// belongs to the caller. A nil Catalogue has no plugins.
type Catalogue struct {
	plugins map[string]entry // by name
}

// entry is a plugin and where it stood in the list that New was given.
type entry struct {
	plugin Plugin
	index  int
}

// New checks plugins and returns the catalogue of them. An error joins one [FieldError] for each thing that is wrong.
func New(plugins []Plugin) (*Catalogue, error) {
	c, err := Usable(plugins)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Usable is New for those who look for all that is wrong: with the error comes the catalogue of the plugins in which nothing is. It is
// never nil.
func Usable(plugins []Plugin) (*Catalogue, error) {
	c := &Catalogue{plugins: map[string]entry{}}
	var wrong []error
	var bad []string // which are left out
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
			bad = append(bad, p.Name)
		}
	}
	for _, name := range bad {
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

// Index returns where the plugin with a name stood in the list that [New] was given, for those who say what is wrong with it.
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

// Changes says in what a catalogue differs from an earlier one. Each list is sorted by name.
type Changes struct {
	// Added and Changed are the plugins as they are now, Removed as they were.
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

// clone returns a copy that shares nothing. What is empty is nil, so that equal plugins are deeply equal.
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
