package catalogue

import (
	"cmp"
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
	plugins []Plugin       // sorted by name
	given   map[string]int // by name, the index in the list that New was given
}

// New checks plugins and returns the catalogue of them. An error joins one [FieldError] for each thing that is wrong.
func New(plugins []Plugin) (*Catalogue, error) {
	c := &Catalogue{plugins: make([]Plugin, len(plugins)), given: map[string]int{}}
	var wrong []error
	for i := range plugins {
		p := clone(plugins[i])
		p.SHA256 = strings.ToLower(p.SHA256)
		c.plugins[i] = p
		for _, problem := range p.problems() {
			wrong = append(wrong, &FieldError{Index: i, Name: p.Name, Field: problem.field, Err: problem.err})
		}
		if other, known := c.given[p.Name]; known {
			err := fmt.Errorf("the name %q is that of plugins[%d] too: give each plugin its own", p.Name, other)
			wrong = append(wrong, &FieldError{Index: i, Name: p.Name, Field: "name", Err: err})
			continue
		}
		c.given[p.Name] = i
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	slices.SortFunc(c.plugins, func(a, b Plugin) int { return cmp.Compare(a.Name, b.Name) })
	return c, nil
}

// Lookup returns the plugin with a name.
func (c *Catalogue) Lookup(name string) (p Plugin, found bool) {
	if c == nil {
		return Plugin{}, false
	}
	i, found := slices.BinarySearchFunc(c.plugins, name, func(p Plugin, name string) int { return cmp.Compare(p.Name, name) })
	if !found {
		return Plugin{}, false
	}
	return clone(c.plugins[i]), true
}

// Index returns where the plugin with a name stood in the list that [New] was given, for those who say what is wrong with it.
func (c *Catalogue) Index(name string) int { return c.given[name] }

// List returns all plugins, sorted by name.
func (c *Catalogue) List() []Plugin {
	if c == nil {
		return nil
	}
	list := make([]Plugin, len(c.plugins))
	for i := range c.plugins {
		list[i] = clone(c.plugins[i])
	}
	return list
}

// Changes says in what a catalogue differs from an earlier one. Each list is sorted by name.
type Changes struct {
	// Added and Changed are the plugins as they are now, Removed as they were.
	Added, Removed, Changed []Plugin
}

// Empty says whether nothing has changed.
func (c Changes) Empty() bool { return len(c.Added)+len(c.Removed)+len(c.Changed) == 0 }

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
