package output

import (
	"log/slog"
	"strconv"
	"strings"
)

// parseLogfmt takes a line apart that consists of key=value pairs, as the text handler of package slog writes it. It must have a level or
// a message.
func parseLogfmt(line string, r *Record) bool {
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

// token takes a quoted string, or what stands before a space or an equals sign, off s. Values with equals signs have to be quoted, as
// slog, hclog and klog do it.
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
