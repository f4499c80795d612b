package config

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// View is a configuration that can be written as JSON, or as YAML with a comment on each value that names its origin.
type View struct{ tree *node }

// InFiles returns the merged files.
func (l *Loaded) InFiles() View { return View{l.files} }

// Effective returns the whole configuration: defaults, files, environment and flags.
func (l *Loaded) Effective() View {
	return View{l.treeOf(reflect.ValueOf(&l.Config).Elem(), "")}
}

// Shown returns the whole configuration without possible secrets: arguments of programs except the names of flags, values of plugins'
// environment variables and of go-plugin's magic cookies, and passwords in URLs.
func (l *Loaded) Shown() View {
	view := l.Effective()
	view.tree.hide("")
	return view
}

const hidden = "(not shown)"

// hide replaces possible secrets. The path is the node's, without indexes.
func (n *node) hide(path string) {
	if n == nil {
		return
	}
	for i, item := range n.items {
		if i > 0 && (path == "plugins.command" || path == "admission.command") {
			item.text = withoutValue(item.text)
		}
		item.hide(path)
	}
	if n.kind == scalar {
		n.text = password.ReplaceAllString(n.text, "${1}"+hidden+"@")
	}
	for _, m := range n.members {
		if below := join(path, m.key); path == "plugins.env" || below == "plugins.goPlugin.cookieValue" {
			m.text, m.tag = hidden, strTag
		} else {
			m.hide(below)
		}
	}
}

// flagName matches an argument that begins with the name of a flag: --name, --name=value, -name=value, or -n with an optional value.
// In any other argument with one dash, the letters after the first may be a value.
var flagName = regexp.MustCompile(`^(--[\w.-]*|-[\w.-]+=|-\w)(.*)$`)

// withoutValue hides the value in an argument of a program.
func withoutValue(argument string) string {
	match := flagName.FindStringSubmatch(argument)
	switch {
	case match == nil:
		return hidden
	case match[2] == "":
		return argument
	case match[2][0] == '=':
		return match[1] + "=" + hidden
	}
	return match[1] + hidden
}

// password matches the user and password of a URL; its group is everything before the password.
var password = regexp.MustCompile(`(://[^\s/?#@:]*:)[^\s/?#]*@`)

// treeOf is the inverse of decode. It returns nil for a zero value that no source sets.
func (l *Loaded) treeOf(v reflect.Value, path string) *node {
	origin, given := l.origins[path]
	if !given {
		origin = defaultOrigin
	}
	if !given && v.IsZero() {
		return nil
	}
	switch value := v.Interface().(type) {
	case time.Duration:
		return newScalar(duration(value), origin)
	case encoding.TextMarshaler:
		text, err := value.MarshalText()
		if err != nil {
			panic(fmt.Sprintf("config: %s cannot be shown: %v", path, err))
		}
		return newScalar(string(text), origin)
	}
	switch v.Kind() {
	case reflect.Struct:
		tree := newMap(origin)
		for i := range v.NumField() {
			key := v.Type().Field(i).Tag.Get("json")
			if value := l.treeOf(v.Field(i), join(path, key)); value != nil {
				tree.set(key, value.origin, value)
			}
		}
		return tree
	case reflect.Map:
		tree := newMap(origin)
		byKey := func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) }
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), byKey) {
			value := l.treeOf(v.MapIndex(key), join(path, key.String()))
			if value == nil {
				value = newMap(origin) // an empty entry of typeTimeouts
			}
			tree.set(key.String(), value.origin, value)
		}
		return tree
	case reflect.Slice:
		tree := &node{kind: list, origin: origin}
		for i := range v.Len() {
			item := l.treeOf(v.Index(i), path+"["+strconv.Itoa(i)+"]")
			if item == nil {
				item = newScalar("", origin)
			}
			tree.items = append(tree.items, item)
		}
		return tree
	case reflect.Bool:
		return &node{text: strconv.FormatBool(v.Bool()), tag: "!!bool", origin: origin}
	case reflect.Int:
		return &node{text: strconv.FormatInt(v.Int(), 10), tag: "!!int", origin: origin}
	default:
		return newScalar(v.String(), origin)
	}
}

// duration formats a duration without zero minutes and seconds at the end.
func duration(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// YAML returns the configuration as YAML. A comment on each value names its origin.
func (v View) YAML() ([]byte, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(v.tree.yaml()); err != nil {
		return nil, err
	}
	return text.Bytes(), encoder.Close()
}

func (n *node) yaml() *yaml.Node {
	y := &yaml.Node{}
	switch n.kind {
	case mapping:
		y.Kind, y.Tag = yaml.MappingNode, "!!map"
		for _, m := range n.members {
			var key yaml.Node
			key.SetString(m.key)
			y.Content = append(y.Content, &key, m.yaml())
		}
	case list:
		y.Kind, y.Tag = yaml.SequenceNode, "!!seq"
		for _, item := range n.items {
			y.Content = append(y.Content, item.yaml())
		}
	default:
		y.Kind, y.Value = yaml.ScalarNode, n.text
		if n.tag == strTag {
			_ = y.Encode(n.text) // quotes text that YAML would not read as text; it never fails
		}
		y.LineComment = "# " + oneLine(n.origin.String())
	}
	if n.kind != scalar && len(y.Content) == 0 {
		y.Style = yaml.FlowStyle
	}
	return y
}

// oneLine escapes line breaks and control characters for a comment.
func oneLine(s string) string {
	quoted := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// MarshalJSON implements [json.Marshaler].
func (v View) MarshalJSON() ([]byte, error) { return json.Marshal(v.tree.json()) }

func (n *node) json() any {
	switch {
	case n.kind == mapping:
		object := map[string]any{}
		for _, m := range n.members {
			object[m.key] = m.json()
		}
		return object
	case n.kind == list:
		array := []any{}
		for _, item := range n.items {
			array = append(array, item.json())
		}
		return array
	case n.isNull():
		return nil
	case n.tag == "!!bool":
		return strings.EqualFold(n.text, "true")
	case n.tag == "!!int" && decimal.MatchString(n.text):
		return json.Number(n.text)
	}
	return n.text
}
