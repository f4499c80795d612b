package output

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean returns s with everything that a terminal or a log may take for more than text as escapes of Go: control characters but tabs,
// among them ESC and line breaks, characters that change the direction of text or show nothing, and bytes that are not UTF-8.
func clean(s string) string {
	for i := range len(s) {
		if b := s[i]; b < ' ' && b != '\t' || b >= 0x7f {
			return cleanFrom(s, i)
		}
	}
	return s
}

// cleanFrom is clean for an s of which the first i bytes need nothing.
func cleanFrom(s string, i int) string {
	var b strings.Builder
	done := 0
	for i < len(s) {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(s[done:i])
			const digits = "0123456789abcdef"
			b.WriteString(`\x`)
			b.WriteByte(digits[s[i]>>4])
			b.WriteByte(digits[s[i]&15])
			done = i + size
		case r != '\t' && !unicode.IsGraphic(r):
			b.WriteString(s[done:i])
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
			done = i + size
		}
		i += size
	}
	if done == 0 {
		return s
	}
	b.WriteString(s[done:])
	return b.String()
}
