// Package untrusted deals with text from others, plugins and callers: whether it may be used, and how it is repeated, in bounded length and
// so that no terminal or log takes it for more than text. It knows what names look like, by the type of what they name, and of no
// other text what it is about.
package untrusted

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxRepeated bounds what is repeated of a text, in bytes, and maxListed of several.
const maxRepeated, maxListed = 256, 16

// Printable reports whether a text is valid UTF-8 of visible characters and spaces.
func Printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Check returns what is wrong with a text that is opaque otherwise and may be empty: it is longer than limit bytes, or not printable.
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

// Name is Required for a text that names something, in which nothing is to look like the end of it.
func Name(what, text string, limit int) error {
	if err := Required(what, text, limit); err != nil {
		return err
	}
	if strings.Contains(text, " ") {
		return fmt.Errorf("%s %s has spaces", what, Quote(text))
	}
	return nil
}

// Quote returns a text in quotes: printable, and cut after 256 bytes.
func Quote(text string) string {
	if len(text) > maxRepeated {
		return strconv.Quote(strings.ToValidUTF8(text[:maxRepeated], "")) + "…"
	}
	return strconv.Quote(text)
}

// QuoteAll returns the first 16 of several texts in quotes, and how many there are beside.
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

// Valid returns a text with U+FFFD instead of bytes that are not UTF-8, which protobuf and metrics refuse.
func Valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// Clip returns a text cut after 256 bytes.
func Clip(text string) string { return Cut(text, maxRepeated) }

// Cut returns a text cut after limit bytes.
func Cut(text string, limit int) string {
	if len(text) > limit {
		return strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
