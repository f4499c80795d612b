package console

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Escape returns s as one line that cannot control a terminal. Control characters, invisible and direction-changing characters and bytes
// that are not UTF-8 are replaced by Go escape sequences such as \x1b. Printable characters stay as they are, so Escape is idempotent.
func Escape(s string) string {
	if untrusted.Printable(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		text := s[:size]
		if !unicode.IsPrint(r) || r == utf8.RuneError && size == 1 {
			text = strings.Trim(strconv.Quote(text), `"`)
		}
		b.WriteString(text)
		s = s[size:]
	}
	return b.String()
}

// EscapeJSON replaces unprintable characters from U+007F to U+FFFF in JSON text by \u escapes, because the encoder does not. They occur
// only in strings; one of them, U+009B, starts terminal sequences. Characters above U+FFFF are harmless to terminals and stay, because
// YAML, which is made from the JSON, has no surrogate pairs.
func EscapeJSON(text []byte) []byte {
	if bytes.IndexFunc(text, unsafeInJSON) < 0 {
		return text
	}
	var escaped []byte
	for _, r := range string(text) {
		if unsafeInJSON(r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		} else {
			escaped = utf8.AppendRune(escaped, r)
		}
	}
	return escaped
}

func unsafeInJSON(r rune) bool { return r >= 0x7f && r <= 0xffff && !unicode.IsPrint(r) }

// Cell escapes a value for a table; an empty one becomes "-".
func Cell(value string) string {
	if value == "" {
		return "-"
	}
	return Escape(value)
}

// Formats of times.
const (
	day    = 24 * time.Hour
	Millis = "2006-01-02T15:04:05.000Z07:00" // RFC 3339, with as many digits in each line
)

// Short formats a duration with one unit, the largest of which there are at least two: 90s, 5m, 7h, 12d. A negative duration, which
// different clocks can cause, counts as zero.
func Short(d time.Duration) string {
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%dd", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", max(d, 0)/time.Second)
}

// TimeOf returns the time of a timestamp; nil for none.
func TimeOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.AsTime())
}

// Since formats the time from t to now.
func Since(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return Short(now.Sub(*t))
}

// Ago returns how long ago t was, such as "5m ago".
func Ago(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return Since(t, now) + " ago"
}

// Moment formats a time and its distance from now.
func Moment(t *time.Time, now time.Time) string {
	switch {
	case t == nil:
		return ""
	case t.After(now):
		return fmt.Sprintf("%s (in %s)", t.Local().Format(time.RFC3339), Short(t.Sub(now)))
	}
	return fmt.Sprintf("%s (%s)", t.Local().Format(time.RFC3339), Ago(t, now))
}
