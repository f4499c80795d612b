package config

// merge returns base with what over says: maps are merged key by key, anything else is replaced, and an empty value says nothing. Neither
// argument changes.
func merge(base, over *node) *node {
	switch {
	case over.isNull():
		return base
	case base.kind != mapping || over.kind != mapping:
		return over
	}
	merged := &node{kind: mapping, origin: over.origin, members: append([]member(nil), base.members...)}
	for _, m := range over.members {
		if m.isNull() {
			continue
		}
		value := m.node
		if below := base.get(m.key); below != nil {
			value = merge(below, value)
		}
		merged.set(m.key, m.at, value)
	}
	return merged
}

// Setting is a value that goes before the files: one of the environment, or a flag.
type Setting struct {
	// Path are the keys that lead to the value.
	Path []string
	// Value is its text. It is left out if List is not nil.
	Value string
	List  []string
	// Source names the origin: "environment variable NAME" or "flag --name".
	Source string
}

// layer returns a tree that says what the setting does, and nothing else.
func (s Setting) layer() *node {
	origin := Origin{Source: s.Source}
	tree := newScalar(s.Value, origin)
	if s.List != nil {
		tree = &node{kind: list, origin: origin}
		for _, item := range s.List {
			tree.items = append(tree.items, newScalar(item, origin))
		}
	}
	for i := len(s.Path) - 1; i >= 0; i-- {
		outer := newMap(origin)
		outer.set(s.Path[i], origin, tree)
		tree = outer
	}
	return tree
}
