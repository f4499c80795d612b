// Package suggest proposes the known word, such as a configuration key or the name of a plugin, that is nearest to a mistyped one. It does
// not complete words.
package suggest

import (
	"strconv"
	"strings"
)

// maxLength limits the length of compared words: the time is the product of their lengths.
const maxLength = 256

// To returns the word that is nearest to word, if one is near.
func To(word string, words []string) (found string, ok bool) {
	best := 0
	for _, candidate := range words {
		if max(len(word), len(candidate)) > maxLength {
			continue
		}
		edits := distance(strings.ToLower(word), strings.ToLower(candidate))
		if edits <= max(1, len(candidate)/3) && (!ok || edits < best) {
			found, best, ok = candidate, edits, true
		}
	}
	return found, ok
}

// distance returns the least number of insertions, deletions, replacements and swaps of neighbours that change a to b (the optimal string
// alignment distance).
func distance(a, b string) int {
	if len(a) > len(b)+32 {
		return len(a) - len(b) // far from every word
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
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

// Hint returns "; did you mean NAME?" with the known name that is nearest to another one; empty if none is near.
func Hint(name string, known []string) string {
	meant, ok := To(name, known)
	if !ok {
		return ""
	}
	return "; did you mean " + strconv.Quote(meant) + "?"
}
