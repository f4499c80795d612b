package pluginlog

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/patchbay-dev/patchbay/plugin"
)

// usualAttrs is the number of attributes for which forward allocates memory in advance. Few lines have more.
const usualAttrs = 8

// record parses an entry. It appends the attributes to attrs, which is empty or nil.
func (e entry) record(seq uint64, attrs []slog.Attr) plugin.LogRecord {
	r := plugin.LogRecord{Seq: seq, Time: e.at, Source: sources[e.flags&sourceMask], Attrs: attrs}
	switch {
	case e.flags&flagRecord != 0:
		r.Level, r.Message, r.Attrs = decode(e.data)
	case e.flags&flagTrace != 0:
		r.Level, r.Message = slog.LevelError, clean(string(e.data))
	default:
		if r.Source == Stderr {
			r.Level = slog.LevelWarn
		}
		parse(string(e.data), &r)
	}
	if e.flags&flagCut != 0 {
		r.Attrs = append(r.Attrs, slog.Bool("cut", true))
	}
	return r
}

// parse parses a line, which is not empty, into r, which has the defaults.
func parse(line string, r *plugin.LogRecord) {
	done := false
	switch c := line[0]; {
	case c == '{':
		done = parseJSON(line, r)
	case c >= '0' && c <= '9':
		done = parseDefault(line, r)
	case c == 'I' || c == 'W' || c == 'E' || c == 'F':
		done = parseKlog(line, r)
	case c == 't' || c == 'l' || c == 'm':
		done = parseLogfmt(line, r)
	}
	if !done {
		r.Message = clean(line)
	}
}

// parseDefault parses a line of slog's default handler: "2009/11/10 23:00:00 INFO message key=value". It ignores the time, which has no
// zone.
func parseDefault(line string, r *plugin.LogRecord) bool {
	const layout = "2006/01/02 15:04:05 "
	if len(line) < len(layout) || line[4] != '/' {
		return false
	}
	if _, err := time.Parse(layout, line[:len(layout)]); err != nil {
		return false
	}
	name, message, _ := strings.Cut(line[len(layout):], " ")
	level, ok := slogLevel(name)
	if !ok {
		return false
	}
	r.Level = level
	equals := max(strings.IndexByte(message, '='), 0)
	if begin := strings.LastIndexByte(message[:equals], ' ') + 1; begin > 0 {
		if attrs, ok := logfmt(message[begin:]); ok {
			r.Attrs = attrs
			message = strings.TrimRight(message[:begin], " ")
		}
	}
	r.Message = clean(message)
	return true
}

// parseTime parses a time with a zone, in the format of RFC 3339 or of hclog, whose zones have no colon.
func parseTime(s string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		if t, err = time.Parse("2006-01-02T15:04:05Z0700", s); err != nil {
			return time.Time{}, false
		}
	}
	return t, representable(t)
}

func digits[S string | []byte](s S) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// isKlog reports whether line begins with the header of klog: "I0102 15:04:05.000000    1234 file.go:56] ".
func isKlog[S string | []byte](line S) bool {
	return len(line) > len("I0102 15:04:05.000000 ") && (line[0] == 'I' || line[0] == 'W' || line[0] == 'E' || line[0] == 'F') &&
		digits(line[1:5]) && line[5] == ' ' && digits(line[6:8]) && line[8] == ':' && digits(line[9:11]) && line[11] == ':' &&
		digits(line[12:14]) && line[14] == '.' && digits(line[15:21]) && line[21] == ' '
}

// parseKlog parses a line of klog, which may be structured: `"message" key="value"`. It ignores the time, which has no year and no zone.
func parseKlog(line string, r *plugin.LogRecord) bool {
	if !isKlog(line) {
		return false
	}
	head, message, ok := strings.Cut(line, "] ")
	if !ok {
		return false
	}
	switch line[0] {
	case 'W':
		r.Level = slog.LevelWarn
	case 'E':
		r.Level = slog.LevelError
	case 'F':
		r.Level = levelFatal
	default:
		r.Level = slog.LevelInfo
	}
	r.Attrs = append(r.Attrs, slog.String("caller", clean(head[strings.LastIndexByte(head, ' ')+1:])))
	if quoted, rest, ok := token(message); ok && message != "" && message[0] == '"' {
		attrs, ok := logfmt(strings.TrimPrefix(rest, " "))
		if ok || rest == "" {
			r.Message = quoted
			r.Attrs = append(r.Attrs, attrs...)
			return true
		}
	}
	r.Message = clean(message)
	return true
}

// parseLogfmt takes a line apart that consists of key=value pairs, as the text handler of package slog writes it. It must have a level or
// a message.
func parseLogfmt(line string, r *plugin.LogRecord) bool {
	if i := strings.IndexByte(line, '='); i < 0 || i > len("timestamp") || roleOf(line[:i]) == roleNone {
		return false
	}
	attrs, ok := logfmt(line)
	if !ok {
		return false
	}
	var f fields
	n := 0
	for _, attr := range attrs {
		if !f.take(attr.Key, attr.Value, r) {
			attrs[n] = attr
			n++
		}
	}
	if !f.recognised() {
		return false
	}
	r.Attrs = append(r.Attrs, attrs[:n]...)
	return true
}

// logfmt reads key=value pairs separated by spaces, at least one.
func logfmt(s string) (attrs []slog.Attr, ok bool) {
	attrs = make([]slog.Attr, 0, 4)
	for s = strings.TrimRight(s, " "); s != ""; {
		key, rest, ok := token(s)
		if !ok || key == "" || rest == "" || rest[0] != '=' {
			return nil, false
		}
		value, rest, ok := token(rest[1:])
		if !ok || rest != "" && rest[0] != ' ' {
			return nil, false
		}
		attrs = append(attrs, slog.String(key, value))
		s = strings.TrimLeft(rest, " ")
	}
	return attrs, len(attrs) > 0
}

// token cuts s after a quoted string, or before the next space or equals sign. slog, hclog and klog quote values with equals signs.
func token(s string) (value, rest string, ok bool) {
	if s != "" && s[0] == '"' {
		quoted, err := strconv.QuotedPrefix(s)
		if err != nil {
			return "", "", false
		}
		value, err = strconv.Unquote(quoted)
		return clean(value), s[len(quoted):], err == nil
	}
	i := 0
	for i < len(s) && s[i] != ' ' && s[i] != '=' {
		if s[i] == '"' {
			return "", "", false
		}
		i++
	}
	return clean(s[:i]), s[i:], true
}

// role is the meaning of a key in a recognized log format.
type role int

const (
	roleNone role = iota
	roleTime
	roleLevel
	roleMessage
)

func roleOf(key string) role {
	switch key {
	case "time", "ts", "timestamp", "@timestamp", "t":
		return roleTime
	case "level", "lvl", "severity", "@level":
		return roleLevel
	case "msg", "message", "@message":
		return roleMessage
	}
	return roleNone
}

// fields reports which fields of a record are set. The first key of a role sets the field; later ones are attributes.
type fields struct{ time, level, message bool }

// take sets the field of r for the role of key. It reports false if there is none, if it is set already, or if the value is not valid for
// it.
func (f *fields) take(key string, value slog.Value, r *plugin.LogRecord) bool {
	role := roleOf(key)
	if role == roleNone || value.Kind() != slog.KindString {
		return false
	}
	switch text := value.String(); role {
	case roleTime:
		if at, ok := parseTime(text); ok && !f.time {
			r.Time, f.time = at, true
			return true
		}
	case roleLevel:
		if level, ok := levelOf(text); ok && !f.level {
			r.Level, f.level = level, true
			return true
		}
	default:
		if !f.message {
			r.Message, f.message = text, true
			return true
		}
	}
	return false
}

// recognised reports whether the fields are sufficient to treat the line as a log record.
func (f *fields) recognised() bool { return f.level || f.message }

// Levels that package slog does not define.
const (
	levelTrace = slog.LevelDebug - 4
	levelFatal = slog.LevelError + 4
)

// levelOf returns the level with a name, in upper or lower case, in any of the supported formats.
func levelOf(name string) (slog.Level, bool) {
	var buf [len("critical")]byte
	if len(name) > len(buf) {
		return slogLevel(name)
	}
	for i := range len(name) {
		buf[i] = name[i]
		if c := name[i]; c >= 'A' && c <= 'Z' {
			buf[i] += 'a' - 'A'
		}
	}
	switch string(buf[:len(name)]) {
	case "trace":
		return levelTrace, true
	case "debug":
		return slog.LevelDebug, true
	case "info", "notice":
		return slog.LevelInfo, true
	case "warn", "warning":
		return slog.LevelWarn, true
	case "error", "err":
		return slog.LevelError, true
	case "fatal", "panic", "dpanic", "critical", "alert", "emerg":
		return levelFatal, true
	}
	return slogLevel(name)
}

// slogLevel parses a level in the format of package slog, such as INFO or ERROR+2.
func slogLevel(name string) (level slog.Level, ok bool) {
	if name == "" || strings.IndexByte("DIWE", name[0]) < 0 || strings.ToUpper(name) != name {
		return 0, false
	}
	err := level.UnmarshalText([]byte(name))
	return level, err == nil
}

// clean escapes, as in Go strings, characters that a terminal or a log could interpret: control characters except tabs, characters that are
// invisible or change the direction of text, and invalid UTF-8.
func clean(s string) string {
	for i := range len(s) {
		if b := s[i]; b < ' ' && b != '\t' || b >= 0x7f {
			return cleanFrom(s, i)
		}
	}
	return s
}

// cleanFrom is clean for a string whose first i bytes need no escapes.
func cleanFrom(s string, i int) string {
	var b strings.Builder
	done := 0
	for i < len(s) {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(s[done:i])
			fmt.Fprintf(&b, `\x%02x`, s[i])
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
