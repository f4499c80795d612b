package config

import (
	"reflect"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/nearest"
)

// fieldOf returns the index of the field with a key.
func fieldOf(t reflect.Type, key string) (index int, known bool) {
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("json") == key {
			return i, true
		}
	}
	return 0, false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for field := range t.Fields() {
		keys = append(keys, field.Tag.Get("json"))
	}
	return keys
}

// join returns the path of a key in the value with another path. The path of the whole file is empty.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// suggestion says which key was meant, or which there are.
func suggestion(t reflect.Type, path, key string) string {
	keys := keysOf(t)
	if meant, ok := nearest.To(key, keys); ok {
		return ": did you mean " + `"` + join(path, meant) + `"?`
	}
	return ": the keys here are " + strings.Join(keys, ", ")
}

// near says which word was meant, if that can be told.
func near(word string, words []string) string {
	if meant, ok := nearest.To(word, words); ok && len(words) > 1 {
		return ": did you mean " + `"` + meant + `"?`
	}
	return ""
}
