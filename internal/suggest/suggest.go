// Package suggest finds the word that somebody meant who wrote another one: a key of a file, or the name of a plugin. It only proposes, and
// knows nothing of what the words stand for; completion in a shell is not its business.
package suggest

import (
	"strconv"
	"strings"
)

// maxLength bounds the words that are compared, which takes the product of their lengths.
const maxLength = 256

// To returns the one of the words that is most like a word, if one is like it at all.
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

// distance returns the least number of insertions, deletions, replacements and swaps of neighbours that make b of a (the optimal string
// alignment distance).
func distance(a, b string) int {
	if len(a) > len(b)+32 {
		return len(a) - len(b) // more than enough to be none of the words
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
