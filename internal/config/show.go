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

// View is a configuration to be shown: as YAML, where a comment says where each value comes from, or as JSON.
type View struct{ tree *node }

// InFiles shows what the files say, merged.
func (l *Loaded) InFiles() View { return View{l.files} }

// Effective shows what is in force: the files with the environment and the flags over them and the defaults below.
func (l *Loaded) Effective() View {
	return View{l.treeOf(reflect.ValueOf(&l.Config).Elem(), "")}
}

// Shown shows what is in force without what may be secret: the arguments of programs but for the names of flags, the values of the
// environment of plugins and of the magic cookies of go-plugin, and passwords in URLs.
func (l *Loaded) Shown() View {
	view := l.Effective()
	view.tree.hide("")
	return view
}

const hidden = "(not shown)"

// hide takes the values out that may be secret; path is that of the node, without numbers.
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

// flagName is how an argument begins whose name is told: two dashes and a name, with or without a value, or one dash and a name with a
// value or of one letter. What follows one dash else may be a letter with its value.
var flagName = regexp.MustCompile(`^(--[\w.-]*|-[\w.-]+=|-\w)(.*)$`)

// withoutValue takes the value out of an argument of a program.
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

// password is that of a URL, with what stands before it.
var password = regexp.MustCompile(`(://[^\s/?#@:]*:)[^\s/?#]*@`)

// treeOf is the inverse of decode. What is zero and was not given is nil.
func (l *Loaded) treeOf(v reflect.Value, path string) *node {
	origin, given := l.origins[path]
	if !given {
		origin = Default
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
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), byText) {
			value := l.treeOf(v.MapIndex(key), join(path, key.String()))
			if value == nil {
				value = newMap(origin) // a type without timeouts of its own
			}
			tree.set(key.String(), value.origin, value)
		}
		return tree
	case reflect.Slice:
		tree := &node{kind: list, origin: origin}
		for i := range v.Len() {
			item := l.treeOf(v.Index(i), path+"["+strconv.Itoa(i)+"]")
			if item == nil {
				item = newScalar("", origin) // an empty path, which is no default that anyone could want
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

func byText(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) }

// duration writes a duration without parts that are zero.
func duration(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// YAML returns the text as YAML. Each value has a comment that says where it comes from.
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
			_ = y.Encode(n.text) // puts it in quotes where it would be read as something else; a text always can be
		}
		y.LineComment = "# " + oneLine(n.origin.String())
	}
	if n.kind != scalar && len(y.Content) == 0 {
		y.Style = yaml.FlowStyle
	}
	return y
}

// oneLine makes text fit for a comment.
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
