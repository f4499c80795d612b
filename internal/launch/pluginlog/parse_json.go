package pluginlog

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Objects become attributes with dots in their keys as long as they are not deeper than maxDepth and the key of the object is not longer
// than maxPrefix, which bounds what a line can grow to; others stay JSON.
const (
	maxDepth  = 4
	maxPrefix = 128
)

// parseJSON takes a line apart that is one JSON object with a level or a message. Objects in it are flattened: the key of an attribute is
// all keys on the way, joined with dots. Arrays, and numbers that fit no int64 or float64, stay as they are written.
func parseJSON(line string, r *plugin.LogRecord) bool {
	var f fields
	blank := *r
	p := jsonParser{line: line, attrs: slices.Grow(r.Attrs, usualAttrs), record: r, fields: &f}
	if !p.object("", 0) || !p.ended() || !f.recognised() {
		*r = blank
		return false
	}
	if len(p.attrs) > 0 {
		r.Attrs = p.attrs
	}
	return true
}

// jsonParser reads the members of an object in one pass. It accepts what encoding/json accepts, which it leaves everything to that is
// not common: escapes, arrays, deep objects.
type jsonParser struct {
	line   string
	at     int // the index of the next byte
	attrs  []slog.Attr
	record *plugin.LogRecord
	fields *fields
}

func (p *jsonParser) object(prefix string, depth int) bool {
	p.at++
	if p.next() == '}' {
		p.at++
		return true
	}
	for {
		if p.next() != '"' {
			return false
		}
		key, ok := p.text()
		if !ok || p.next() != ':' {
			return false
		}
		p.at++
		if prefix != "" {
			key = prefix + "." + key
		}
		if !p.member(key, depth) {
			return false
		}
		switch p.next() {
		case ',':
			p.at++
		case '}':
			p.at++
			return true
		default:
			return false
		}
	}
}

func (p *jsonParser) member(key string, depth int) bool {
	var value slog.Value
	switch c := p.next(); {
	case c == '"':
		text, ok := p.text()
		if !ok {
			return false
		}
		value = slog.StringValue(text)
	case c == '-' || c >= '0' && c <= '9':
		var ok bool
		if value, ok = p.number(); !ok {
			return false
		}
	case c == '{' && depth < maxDepth && len(key) <= maxPrefix && !p.empty():
		return p.object(key, depth+1)
	case c == '{' || c == '[':
		text, ok := p.composite()
		if !ok {
			return false
		}
		value = slog.StringValue(clean(text))
	case p.literal("true"):
		value = slog.BoolValue(true)
	case p.literal("false"):
		value = slog.BoolValue(false)
	case p.literal("null"):
		value = slog.StringValue("null")
	default:
		return false
	}
	if depth == 0 && p.fields.take(key, value, p.record) {
		return true
	}
	p.attrs = append(p.attrs, slog.Attr{Key: strings.TrimPrefix(key, "@"), Value: value})
	return true
}

// next skips space and returns the byte behind it, 0 at the end.
func (p *jsonParser) next() byte {
	for ; p.at < len(p.line); p.at++ {
		switch c := p.line[p.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// ended reports whether only space is left.
func (p *jsonParser) ended() bool {
	p.next()
	return p.at == len(p.line)
}

// empty reports whether the object or array that begins here has no members.
func (p *jsonParser) empty() bool {
	inner := strings.TrimLeft(p.line[p.at+1:], " \t\r\n")
	return inner != "" && inner[0] == '}'
}

// text reads a string and makes it harmless.
func (p *jsonParser) text() (string, bool) {
	for i := p.at + 1; i < len(p.line); i++ {
		switch c := p.line[i]; {
		case c == '"':
			s := p.line[p.at+1 : i]
			p.at = i + 1
			return s, true
		case c < ' ':
			return "", false
		case c == '\\' || c >= 0x7f:
			return p.rareText(i)
		}
	}
	return "", false
}

// rareText is text for a string with escapes or with more than ASCII from byte i of the line on.
func (p *jsonParser) rareText(i int) (string, bool) {
	escaped := false
	for ; i < len(p.line) && p.line[i] != '"'; i++ {
		if p.line[i] == '\\' {
			escaped = true
			i++
		}
	}
	if i >= len(p.line) {
		return "", false
	}
	quoted := p.line[p.at : i+1]
	p.at = i + 1
	if !escaped {
		s := quoted[1 : len(quoted)-1]
		for j := range len(s) {
			if s[j] < ' ' {
				return "", false
			}
		}
		return clean(s), true
	}
	var s string
	if err := json.Unmarshal([]byte(quoted), &s); err != nil {
		return "", false
	}
	return clean(s), true
}

func (p *jsonParser) number() (slog.Value, bool) {
	i, integer := p.at, true
scan:
	for ; i < len(p.line); i++ {
		switch c := p.line[i]; {
		case c >= '0' && c <= '9', c == '-' && i == p.at:
		case c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-':
			integer = false
		default:
			break scan
		}
	}
	s := p.line[p.at:i]
	p.at = i
	unsigned := strings.TrimPrefix(s, "-")
	if integer && len(unsigned) > 0 && len(unsigned) < 19 && (unsigned[0] != '0' || unsigned == "0") && s != "-0" {
		n, err := strconv.ParseInt(s, 10, 64)
		return slog.Int64Value(n), err == nil
	}
	if !json.Valid([]byte(s)) {
		return slog.Value{}, false
	}
	if !integer {
		if n, err := strconv.ParseFloat(s, 64); err == nil {
			return slog.Float64Value(n), true
		}
	}
	return slog.StringValue(s), true
}

func (p *jsonParser) composite() (string, bool) {
	depth, quoted := 0, false
	for i := p.at; i < len(p.line); i++ {
		switch c := p.line[i]; {
		case quoted && c == '\\':
			i++
		case quoted:
			quoted = c != '"'
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				text := p.line[p.at : i+1]
				p.at = i + 1
				return text, json.Valid([]byte(text))
			}
		}
	}
	return "", false
}

func (p *jsonParser) literal(word string) bool {
	if !strings.HasPrefix(p.line[p.at:], word) {
		return false
	}
	p.at += len(word)
	return true
}
