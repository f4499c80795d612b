package output

import (
	"log/slog"
	"strings"
	"time"
)

// record takes e apart.
func (e entry) record(seq uint64) Record {
	r := Record{Seq: seq, Time: e.at, Source: sources[e.flags&sourceMask]}
	switch {
	case e.flags&flagRecord != 0:
		r.Level, r.Message, r.Attrs = decode(e.data)
	case e.flags&flagTrace != 0:
		r.Level, r.Message = slog.LevelError, clean(string(e.data))
	default:
		parse(string(e.data), &r)
	}
	if e.flags&flagCut != 0 {
		r.Attrs = append(r.Attrs, slog.Bool("cut", true))
	}
	return r
}

// parse takes a line that is not empty apart. r comes with what holds unless the line says otherwise.
func parse(line string, r *Record) {
	done := false
	switch c := line[0]; {
	case c == '{':
		done = parseJSON(line, r)
	case c >= '0' && c <= '9':
		done = parseStamped(line, r)
	case c == 'I' || c == 'W' || c == 'E' || c == 'F':
		done = parseKlog(line, r)
	case c == 't' || c == 'l' || c == 'm':
		done = parseLogfmt(line, r)
	}
	if !done {
		parseText(line, r)
	}
}

// parseText takes a message without a time apart: its level may stand before it, in brackets as hclog and users of Go's log package write
// it, or before a colon as in "error: …".
func parseText(text string, r *Record) {
	if level, rest, ok := bracketedLevel(text); ok {
		r.Level = level
		parseMessage(rest, r)
		return
	}
	if i := strings.IndexByte(text[:min(len(text), len("critical:"))], ':'); i > 0 {
		if level, ok := levelOf(text[:i]); ok && level >= slog.LevelWarn {
			r.Level = level
		}
	}
	r.Message = clean(text)
}

// bracketedLevel takes a level in brackets, and the spaces behind it, off text.
func bracketedLevel(text string) (level slog.Level, rest string, ok bool) {
	if text == "" || text[0] != '[' {
		return 0, text, false
	}
	end := strings.IndexByte(text[:min(len(text), len("[critical]"))], ']')
	if end < 0 {
		return 0, text, false
	}
	level, ok = levelOf(text[1:end])
	return level, strings.TrimLeft(text[end+1:], " "), ok
}

// parseMessage takes the attributes, as logfmt, off the end of a message.
func parseMessage(text string, r *Record) {
	equals := max(strings.IndexByte(text, '='), 0)
	if begin := strings.LastIndexByte(text[:equals], ' ') + 1; begin > 0 {
		if attrs, ok := logfmt(text[begin:]); ok {
			r.Attrs = attrs
			text = strings.TrimSuffix(strings.TrimRight(text[:begin], " "), ":") // hclog has a colon there
		}
	}
	r.Message = clean(text)
}

// parseStamped takes lines apart that begin with a time: "2006-01-02T15:04:05.000Z [INFO]  message: key=value" of hclog, and
// "2009/11/10 23:00:00 message" of Go's log package, with or without microseconds, which package slog writes too, then with
// the level before the message.
func parseStamped(line string, r *Record) bool {
	if len(line) < len("2006/01/02 15:04:05") || line[4] != line[7] || !digits(line[:4]) {
		return false
	}
	if line[4] == '-' {
		stamp, rest, _ := strings.Cut(line, " ")
		at, ok := parseTime(stamp)
		if !ok {
			return false
		}
		level, rest, ok := bracketedLevel(rest)
		if !ok {
			return false
		}
		r.Time, r.Level = at, level
		parseMessage(rest, r)
		return true
	}
	if line[4] != '/' || line[10] != ' ' || line[13] != ':' || line[16] != ':' || !digits(line[5:7]) || !digits(line[8:10]) ||
		!digits(line[11:13]) || !digits(line[14:16]) || !digits(line[17:19]) {
		return false
	}
	// The zone is not known, so the time of arrival stays.
	rest := line[19:]
	if rest != "" && rest[0] == '.' {
		rest = strings.TrimLeft(rest[1:], "0123456789")
	}
	rest = strings.TrimPrefix(rest, " ")
	if name, message, ok := strings.Cut(rest, " "); ok {
		if level, ok := slogLevel(name); ok {
			r.Level = level
			parseMessage(message, r)
			return true
		}
	}
	parseText(rest, r)
	return true
}

// parseTime reads a time with a zone, as RFC 3339 has it or with a zone without colon, as zap and hclog write it.
func parseTime(s string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		if t, err = time.Parse("2006-01-02T15:04:05Z0700", s); err != nil {
			return time.Time{}, false
		}
	}
	return t, representable(t)
}

// digits says whether s holds nothing but digits.
func digits[S string | []byte](s S) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
