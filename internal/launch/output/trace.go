package output

import "bytes"

// traceMessage is how many lines a dump may have before the first goroutine. The message of a panic may hold line breaks.
const traceMessage = 64

// trace follows dumps of the Go runtime (panics, fatal errors, SIGQUIT, reports of the race detector) through lines of standard error.
type trace struct {
	inside  bool
	frames  bool // the first goroutine was seen
	message int  // lines so far without one
}

var traceBegins = [][]byte{
	[]byte("panic: "), []byte("fatal error: "), []byte("goroutine "), []byte("SIG"), []byte("runtime: "), []byte("unexpected fault address "),
	[]byte("WARNING: DATA RACE"),
}

var frameBegins = [][]byte{
	[]byte("created by "), []byte("[signal "), []byte("[originating from "), []byte("exit status "), []byte("runtime stack:"), []byte("..."),
}

// line takes the next line and says whether it belongs to a dump.
func (t *trace) line(b []byte) bool {
	if t.inside && t.frames && !frame(b) {
		t.inside = false
	}
	if t.inside && !t.frames {
		t.message++
		if t.message > traceMessage || structured(b) {
			t.inside = false
		}
	}
	if !t.inside {
		if !begins(b) {
			return false
		}
		*t = trace{inside: true}
	}
	switch {
	case bytes.HasPrefix(b, []byte("goroutine ")):
		t.frames = true
	case bytes.HasPrefix(b, []byte("=====")): // the race detector's last line
		t.inside = false
	}
	return true
}

// begins says whether b may be the first line of a dump.
func begins(b []byte) bool {
	if len(b) == 0 || !bytes.ContainsRune([]byte("pfgSruW"), rune(b[0])) {
		return false
	}
	for _, begin := range traceBegins {
		if !bytes.HasPrefix(b, begin) {
			continue
		}
		switch begin[0] {
		case 'g':
			return bytes.Contains(b, []byte(" [")) && bytes.HasSuffix(b, []byte("]:"))
		case 'S':
			name, _, ok := bytes.Cut(b, []byte(": "))
			return ok && bytes.Equal(name, bytes.ToUpper(name))
		}
		return true
	}
	return false
}

// frame says whether b may be a line among the goroutines of a dump.
func frame(b []byte) bool {
	if b[0] == '\t' || begins(b) {
		return true
	}
	for _, prefix := range frameBegins {
		if bytes.HasPrefix(b, prefix) {
			return true
		}
	}
	word, rest, spaced := bytes.Cut(b, []byte(" "))
	if spaced && bytes.HasPrefix(bytes.TrimLeft(rest, " "), []byte("0x")) {
		return true // a register: "rax    0x1f"
	}
	return b[len(b)-1] == ')' && bytes.IndexByte(word, '(') > 0 // a call: "main.f(0x1, 0x2)"
}

// structured says whether b is most likely a line of some log.
func structured(b []byte) bool {
	return b[0] == '{' || bytes.HasPrefix(b, []byte("time=")) || isKlog(b) || len(b) > 10 && b[4] == b[7] && (b[4] == '/' || b[4] == '-') &&
		digits(b[:4])
}
