package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/suggest"
)

// decoder sets Go values from a tree of nodes. It is strict, and collects all errors.
type decoder struct{ errs Errors }

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// defaulter is a struct with fields whose default is not zero.
type defaulter interface{ SetDefaults() }

func (d *decoder) fail(at Origin, format string, args ...any) {
	d.errs = append(d.errs, &Error{at, fmt.Errorf(format, args...)})
}

func (d *decoder) mismatch(n *node, path, want string) {
	d.fail(n.origin, "%s must be %s, and is %s", path, want, n.describe())
}

// decode sets v from n. Errors name the value by its path; field has the tags of its struct field.
func (d *decoder) decode(n *node, v reflect.Value, path string, field reflect.StructTag) {
	if v.CanAddr() && reflect.PointerTo(v.Type()).Implements(textType) {
		d.text(n, v, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(n, v, path)
	case reflect.Map:
		d.entries(n, v, path, field)
	case reflect.Slice:
		d.items(n, v, path, field)
	case reflect.String:
		d.word(n, v, path, field)
	case reflect.Bool:
		if n.tag != "!!bool" {
			d.mismatch(n, path, "true or false")
			return
		}
		v.SetBool(strings.EqualFold(n.text, "true"))
	case reflect.Int, reflect.Int64:
		d.number(n, v, path, field)
	default:
		panic("config: a field has the type " + v.Type().String() + ", which is not supported")
	}
}

func (d *decoder) object(n *node, v reflect.Value, path string) {
	if n.kind != mapping {
		d.mismatch(n, cmp.Or(path, "the file"), "a map")
		return
	}
	if v.CanAddr() {
		if with, ok := v.Addr().Interface().(defaulter); ok && path != "" {
			with.SetDefaults()
		}
	}
	for _, m := range n.members {
		i := slices.Index(keysOf(v.Type()), m.key)
		if i < 0 {
			d.fail(m.at, "unknown key %q%s", join(path, m.key), suggestion(v.Type(), path, m.key))
			continue
		}
		if !m.isNull() {
			d.decode(m.node, v.Field(i), join(path, m.key), v.Type().Field(i).Tag)
		}
	}
	for field := range v.Type().Fields() {
		key := field.Tag.Get("json")
		if value := n.get(key); field.Tag.Get("required") != "" && (value == nil || value.isNull()) {
			d.fail(n.origin, "%s is missing%s", join(path, key), oneOf(field.Tag))
		}
	}
}

// oneOf returns a hint with the words that the enum tag of a field allows.
func oneOf(tag reflect.StructTag) string {
	if words := tag.Get("enum"); words != "" {
		return ": write " + tag.Get("json") + ": " + words
	}
	return ""
}

func (d *decoder) entries(n *node, v reflect.Value, path string, field reflect.StructTag) {
	if n.kind != mapping {
		d.mismatch(n, path, "a map")
		return
	}
	v.SetZero() // an empty map sets the field to nil, as a missing key does
	if len(n.members) > 0 {
		v.Set(reflect.MakeMap(v.Type()))
	}
	for _, m := range n.members {
		if m.isNull() {
			continue
		}
		value := reflect.New(v.Type().Elem()).Elem()
		d.decode(m.node, value, join(path, m.key), field)
		v.SetMapIndex(reflect.ValueOf(m.key), value)
	}
}

func (d *decoder) items(n *node, v reflect.Value, path string, field reflect.StructTag) {
	if n.kind != list {
		d.mismatch(n, path, "a list")
		return
	}
	v.SetZero() // an empty list sets the field to nil, as a missing key does
	if len(n.items) > 0 {
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
	}
	for i, item := range n.items {
		d.decode(item, v.Index(i), path+"["+strconv.Itoa(i)+"]", field)
	}
}

func (d *decoder) word(n *node, v reflect.Value, path string, field reflect.StructTag) {
	switch words := field.Get("enum"); {
	case n.kind != scalar || n.isNull():
		d.mismatch(n, path, "a text")
	case n.tag != strTag:
		d.fail(n.origin, "%s must be a text, and is %s: put it in quotes", path, n.describe())
	case words != "" && !slices.Contains(strings.Split(words, ","), n.text):
		d.fail(n.origin, "%s is %q: it must be %s%s", path, n.text, choice(words), suggestWord(n.text, strings.Split(words, ",")))
	default:
		v.SetString(n.text)
	}
}

func choice(words string) string {
	if !strings.Contains(words, ",") {
		return words
	}
	return "one of " + strings.ReplaceAll(words, ",", ", ")
}

// text decodes an [encoding.TextUnmarshaler], such as a quantity. A number need not be quoted.
func (d *decoder) text(n *node, v reflect.Value, path string) {
	if n.kind != scalar || !slices.Contains([]string{strTag, "!!int", "!!float"}, n.tag) {
		d.mismatch(n, path, "a text or a number")
		return
	}
	unmarshaler, _ := v.Addr().Interface().(encoding.TextUnmarshaler)
	if err := unmarshaler.UnmarshalText([]byte(n.text)); err != nil {
		d.fail(n.origin, "%s: %w", path, err)
	}
}

// decimal matches whole numbers in the only form that all YAML and JSON parsers read as the same number.
var decimal = regexp.MustCompile(`^-?(0|[1-9]\d*)$`)

func (d *decoder) number(n *node, v reflect.Value, path string, field reflect.StructTag) {
	least, bound := int64(1), "above zero"
	if field.Get("zero") != "" {
		least, bound = 0, "of zero or more"
	}
	if v.Type() == durationType {
		parsed, err := time.ParseDuration(n.text)
		if n.kind != scalar || n.tag != strTag || err != nil || int64(parsed) < least {
			d.mismatch(n, path, "a duration "+bound+", for example 5s or 500ms")
			return
		}
		v.SetInt(int64(parsed))
		return
	}
	parsed, err := strconv.ParseInt(n.text, 10, v.Type().Bits())
	if n.kind != scalar || n.tag != "!!int" || !decimal.MatchString(n.text) || err != nil && !errors.Is(err, strconv.ErrRange) {
		d.mismatch(n, path, "a whole number "+bound)
		return
	}
	if err != nil || parsed < least {
		d.fail(n.origin, "%s is %s: it must be a whole number %s that fits into 63 bits", path, n.text, bound)
		return
	}
	v.SetInt(parsed)
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for field := range t.Fields() {
		keys = append(keys, field.Tag.Get("json"))
	}
	return keys
}

// join returns the path of a key of the map at path, which is empty for the whole file.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// suggestion returns a hint with the known key that resembles key, or with all known keys.
func suggestion(t reflect.Type, path, key string) string {
	keys := keysOf(t)
	if similar, ok := suggest.To(key, keys); ok {
		return `: did you mean "` + join(path, similar) + `"?`
	}
	return ": the keys here are " + strings.Join(keys, ", ")
}

func suggestWord(word string, words []string) string {
	if similar, ok := suggest.To(word, words); ok && len(words) > 1 {
		return `: did you mean "` + similar + `"?`
	}
	return ""
}
