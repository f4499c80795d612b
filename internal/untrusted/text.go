// Package untrusted validates text from plugins and callers, and makes it safe to repeat in messages: bounded in length, valid UTF-8, and
// without characters that change a terminal or forge a log line. It knows the syntax of plugin types and names, and of no other text.
package untrusted

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxRepeated is how many bytes of a text are repeated, and maxListed how many texts of a list.
const maxRepeated, maxListed = 256, 16

// Printable reports whether a text is valid UTF-8 and has only printable characters.
func Printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Check returns an error if a text is longer than limit bytes or not printable. It may be empty.
func Check(what, text string, limit int) error {
	switch {
	case len(text) > limit:
		return fmt.Errorf("%s has %d bytes; %d are allowed", what, len(text), limit)
	case !Printable(text):
		return fmt.Errorf("%s %s has characters that cannot be printed", what, Quote(text))
	}
	return nil
}

// Required is Check for a text that must not be empty.
func Required(what, text string, limit int) error {
	if text == "" {
		return errors.New(what + " is empty; it is required")
	}
	return Check(what, text, limit)
}

// Name is Required for a name, which must not contain spaces.
func Name(what, text string, limit int) error {
	if err := Required(what, text, limit); err != nil {
		return err
	}
	if strings.Contains(text, " ") {
		return fmt.Errorf("%s %s has spaces", what, Quote(text))
	}
	return nil
}

// Quote returns a quoted text, escaped and cut after 256 bytes.
func Quote(text string) string {
	if len(text) > maxRepeated {
		return strconv.Quote(strings.ToValidUTF8(text[:maxRepeated], "")) + "…"
	}
	return strconv.Quote(text)
}

// QuoteAll returns the first 16 texts, quoted, and the number of the others.
func QuoteAll(texts []string) string {
	quoted := make([]string, min(len(texts), maxListed))
	for i := range quoted {
		quoted[i] = Quote(texts[i])
	}
	all := strings.Join(quoted, ", ")
	if more := len(texts) - len(quoted); more > 0 {
		all += fmt.Sprintf(" and %d more", more)
	}
	return all
}

// Valid replaces bytes that are not UTF-8, which protobuf and metrics refuse, by U+FFFD.
func Valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// Clip returns a text cut after 256 bytes.
func Clip(text string) string { return Cut(text, maxRepeated) }

// ValidCut returns a text cut after limit bytes, with U+FFFD instead of bytes that are not UTF-8.
func ValidCut(text string, limit int) string { return Valid(Cut(text, limit)) }

// Cut returns a text cut after limit bytes.
func Cut(text string, limit int) string {
	if len(text) > limit {
		return strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
