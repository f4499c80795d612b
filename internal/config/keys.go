package config

import (
	"reflect"
	"strings"
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
	if nearest, ok := nearest(key, keys); ok {
		return ": did you mean " + `"` + join(path, nearest) + `"?`
	}
	return ": the keys here are " + strings.Join(keys, ", ")
}

// near says which word was meant, if that can be told.
func near(word string, words []string) string {
	if nearest, ok := nearest(word, words); ok && len(words) > 1 {
		return ": did you mean " + `"` + nearest + `"?`
	}
	return ""
}

// nearest returns the word that takes the fewest edits, whatever the case of the letters, if these are few for its length.
func nearest(word string, words []string) (found string, ok bool) {
	best := 0
	for _, candidate := range words {
		edits := distance(strings.ToLower(word), strings.ToLower(candidate))
		if edits <= max(1, len(candidate)/3) && (!ok || edits < best) {
			found, best, ok = candidate, edits, true
		}
	}
	return found, ok
}

// distance returns the least number of insertions, deletions, replacements and swaps of neighbours that make b of a (the optimal string
// alignment distance).
func distance(a, b string) int {
	if len(a) > len(b)+32 {
		return len(a) - len(b) // more than enough to be none of the words
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
		for j := 1; j <= len(b); j++ {
			if i == 0 {
				rows[0][j] = j
				continue
			}
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
