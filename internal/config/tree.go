package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// node is one value of a layer, with its origin.
type node struct {
	kind      kind
	origin    Origin
	text, tag string   // of a scalar; tag is YAML's, for example "!!str"
	items     []*node  // of a list
	members   []member // of a map, in the order of the file, each key once
}

type kind int

const (
	scalar kind = iota
	list
	mapping
)

// member is one entry of a map. A null value means the same as a missing key.
type member struct {
	key string
	at  Origin
	*node
}

const strTag = "!!str"

// newScalar returns a text scalar.
func newScalar(text string, origin Origin) *node {
	return &node{text: text, tag: strTag, origin: origin}
}

func newMap(origin Origin) *node { return &node{kind: mapping, origin: origin} }

func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	for _, m := range n.members {
		if m.key == key {
			return m.node
		}
	}
	return nil
}

// set sets the value of a key. An existing key keeps its place.
func (n *node) set(key string, at Origin, value *node) {
	for i := range n.members {
		if n.members[i].key == key {
			n.members[i] = member{key, at, value}
			return
		}
	}
	n.members = append(n.members, member{key, at, value})
}

func (n *node) isNull() bool { return n.kind == scalar && n.tag == "!!null" }

func (n *node) describe() string {
	switch {
	case n.kind == list:
		return "a list"
	case n.kind == mapping:
		return "a map"
	case n.isNull():
		return "empty"
	}
	what := map[string]string{strTag: "the text", "!!int": "the number", "!!float": "the number", "!!bool": "the boolean"}[n.tag]
	if what == "" {
		what = "the value"
	}
	return what + " " + strconv.Quote(n.text)
}

// parser turns the text of one file into a tree and collects errors.
type parser struct {
	decoder
	file string
}

// parse parses the YAML text of a file. The tree is nil if the text is not YAML.
func (p *parser) parse(text []byte) *node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, next yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if !errors.Is(err, io.EOF) {
			p.syntax(err, text)
			return nil
		}
		return newMap(Origin{file: p.file, line: 1, column: 1})
	}
	switch err := decoder.Decode(&next); {
	case err == nil:
		p.fail(p.at(&next), "something follows the first YAML document: the file may have only one")
	case !errors.Is(err, io.EOF):
		p.syntax(err, text)
	}
	tree := p.node(document.Content[0])
	if tree.isNull() {
		return newMap(tree.origin)
	}
	return tree
}

var lineOfSyntax = regexp.MustCompile(`^line (\d+): `)

// syntax records an error of the YAML library. The library has the line, if known, in the text after "yaml: ". Its parser counts lines
// from 0, its scanner from 1.
func (p *parser) syntax(err error, source []byte) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	at := Origin{file: p.file}
	if match := lineOfSyntax.FindStringSubmatch(text); match != nil {
		line, _ := strconv.Atoi(match[1]) // digits only
		at.line, text = line, text[len(match[0]):]
		if strings.HasPrefix(text, "did not find expected") {
			at.line = min(line+1, 1+bytes.Count(source, []byte("\n")))
		}
	}
	p.fail(at, "this is not YAML: %s", text)
}

func (p *parser) at(y *yaml.Node) Origin {
	return Origin{file: p.file, line: max(y.Line, 1), column: max(y.Column, 1)}
}

// node converts a value. It refuses anchors, because a small file with anchors can expand to a value of any size.
func (p *parser) node(y *yaml.Node) *node {
	n := &node{origin: p.at(y)}
	if y.Anchor != "" || y.Kind == yaml.AliasNode {
		p.fail(p.at(y), "anchors and aliases are not supported: write the value out")
		n.tag = "!!null"
		return n
	}
	switch y.Kind {
	case yaml.SequenceNode:
		n.kind = list
		for _, item := range y.Content {
			n.items = append(n.items, p.node(item))
		}
	case yaml.MappingNode:
		n.kind = mapping
		p.members(n, y)
	default:
		n.text, n.tag = y.Value, y.ShortTag()
	}
	return n
}

func (p *parser) members(n *node, y *yaml.Node) {
	lines := map[string]int{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, value := y.Content[i], y.Content[i+1]
		at := p.at(key)
		switch {
		case key.ShortTag() == "!!merge":
			p.fail(at, "merge keys (<<) are not supported: write the values out")
			continue
		case key.Kind != yaml.ScalarNode || key.ShortTag() != strTag:
			p.fail(at, "a key must be a text: put it in quotes")
			continue
		}
		converted := p.node(value)
		if line, known := lines[key.Value]; known {
			p.fail(at, "duplicate key %q: it is in line %d already", key.Value, line)
			continue
		}
		lines[key.Value] = at.line
		n.members = append(n.members, member{key.Value, at, converted})
	}
}

// merge returns base with the values of over: maps are merged key by key, anything else is replaced, and a null value changes nothing. It
// does not modify its arguments.
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

// Setting is a value from the environment or a flag. It overrides the files.
type Setting struct {
	Path   []string // keys, outermost first
	Value  string   // ignored if List is not nil
	List   []string
	Source string // "environment variable NAME" or "flag --name"
}

// layer returns a tree with only the setting.
func (s Setting) layer() *node {
	origin := Origin{source: s.Source}
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
