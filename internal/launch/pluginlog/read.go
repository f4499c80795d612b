package pluginlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	pipeSize   = 1 << 20   // a plugin can write this many bytes before the reader is scheduled
	idleBuffer = 4 << 10   // size of the read buffer while there is little output
	fullBuffer = 128 << 10 // size of the read buffer while there is much output
	lastWords  = 16 << 10  // how many bytes of lines above the rate limit are held until it is known whether they are the last
)

var fullBuffers = sync.Pool{New: func() any { return new([fullBuffer]byte) }}

var newline = []byte{'\n'}

// Drain reads r into the log. It blocks until the end of the file, until r is closed, or until its read deadline; none of them is an error.
// The caller closes r. Drain tries to enlarge the buffer of a pipe.
//
// Blank lines are counted and not kept. A line is kept when it is complete. A line that is longer than maxLine is cut there.
func (l *Log) Drain(r io.Reader, source string) error {
	if pipe, isFile := r.(*os.File); isFile {
		growPipe(pipe)
	}
	s := stream{log: l, source: sourceFlags(source)}
	defer s.end()
	idle := make([]byte, idleBuffer)
	buf := idle
	var full *[fullBuffer]byte
	for {
		n, err := r.Read(buf)
		if n > 0 && s.write(buf[:n]) {
			runtime.Gosched() // the pipe buffers the output until this goroutine continues
		}
		switch {
		case n == len(buf) && full == nil:
			full, _ = fullBuffers.Get().(*[fullBuffer]byte)
			buf = full[:]
		case n < len(idle) && full != nil:
			fullBuffers.Put(full)
			full, buf = nil, idle
		}
		if err == nil {
			continue
		}
		if full != nil {
			fullBuffers.Put(full)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return fmt.Errorf("cannot read %s of plugin %s: %w", source, l.name, err)
	}
}

// stream is the state of reading one pipe. Its methods are called from one goroutine.
type stream struct {
	log     *Log
	source  flags
	trace   trace
	partial []byte // an incomplete line
	skip    bool   // the next bytes are the rest of a line that was cut
	words   []byte // complete lines above the rate limit after the last line that was kept
}

// write processes a chunk of output. It reports whether the reader should yield to the goroutine that forwards records.
func (s *stream) write(chunk []byte) (behind bool) {
	now := time.Now()
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Bytes += uint64(len(chunk))
	if l.closed {
		return false
	}
	l.limiter.advance(now)
	for len(chunk) > 0 {
		i := bytes.IndexByte(chunk, '\n')
		if i < 0 {
			s.hold(chunk, now)
			break
		}
		line := chunk[:i]
		switch {
		case s.skip:
			s.skip = false
		case len(s.partial) > 0:
			line = append(s.partial, line[:min(len(line), l.maxLine+1-len(s.partial))]...)
			if !s.keep(line, now) {
				s.reject(append(line, '\n'))
			}
			s.partial = nil
		case !s.keep(line, now):
			end := bytes.LastIndexByte(chunk, '\n') + 1
			s.reject(chunk[:end])
			chunk = chunk[end:]
			continue
		}
		chunk = chunk[i+1:]
	}
	return l.publish()
}

func (s *stream) hold(piece []byte, now time.Time) {
	if s.skip {
		return
	}
	room := s.log.maxLine + 1 - len(s.partial)
	s.partial = append(s.partial, piece[:min(len(piece), room)]...)
	if len(piece) < room {
		return
	}
	// Cut the line now: it may never end.
	if !s.keep(s.partial, now) {
		s.reject(append(s.partial, '\n'))
	}
	s.partial, s.skip = nil, true
}

func (s *stream) keep(line []byte, now time.Time) bool {
	l := s.log
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	if len(bytes.TrimLeft(line, " \t")) == 0 {
		l.stats.Lines++
		return true
	}
	isCut := len(line) > l.maxLine
	if isCut {
		line = line[:runeBoundary(line, l.maxLine)]
	}
	if !l.limiter.take(len(line)) {
		return false
	}
	l.stats.Lines++
	if len(s.words) > 0 {
		l.drop(count(s.words))
		s.words = nil
	}
	s.put(line, now, isCut)
	return true
}

func (s *stream) put(line []byte, now time.Time, isCut bool) {
	f := s.source
	if sources[f] == Stderr && s.trace.line(line) {
		f |= flagTrace
	}
	s.log.keep(f, now, line, isCut)
}

// reject holds complete lines above the rate limit, up to a limit, until a later line is kept.
func (s *stream) reject(lines []byte) {
	l := s.log
	l.stats.Lines += count(lines)
	s.trace = trace{}
	if n := len(s.words) + len(lines); n > 2*lastWords {
		// Drop the older ones. Cut lines at the beginning of a line.
		l.drop(count(s.words))
		s.words = s.words[:0]
		if begin := len(lines) - lastWords; begin > 0 {
			begin += bytes.IndexByte(lines[begin-1:], '\n')
			l.drop(count(lines[:begin]))
			lines = lines[begin:]
		}
	}
	s.words = append(s.words, lines...)
}

// end handles the end of the output: lines that were held are kept.
func (s *stream) end() {
	now := time.Now()
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.limiter.advance(now)
	if len(s.partial) > 0 && !s.keep(s.partial, now) {
		s.reject(append(s.partial, '\n'))
	}
	l.report()
	for line := range bytes.Lines(s.words) {
		line = bytes.TrimRight(line, "\r\n")
		n := len(line)
		line = line[:runeBoundary(line, l.maxLine)]
		if len(bytes.TrimLeft(line, " \t")) > 0 {
			s.put(line, now, len(line) < n)
		}
	}
	l.publish()
}

func count(b []byte) uint64 { return uint64(bytes.Count(b, newline)) }

// runeBoundary returns the largest index up to n at which line can be cut without cutting a rune.
func runeBoundary(line []byte, n int) int {
	if n >= len(line) {
		return len(line)
	}
	for back := range min(utf8.UTFMax, n+1) {
		if utf8.RuneStart(line[n-back]) {
			return n - back
		}
	}
	return n
}

// traceMessage is the largest number of lines before the first goroutine of a dump. The message of a panic may have line breaks.
const traceMessage = 64

// trace recognizes dumps of the Go runtime on standard error: panics, fatal errors, SIGQUIT, and reports of the race detector.
type trace struct {
	inside  bool
	frames  bool // after the first goroutine
	message int  // number of lines before the first goroutine
}

var traceBegins = [][]byte{
	[]byte("panic: "), []byte("fatal error: "), []byte("goroutine "), []byte("SIG"), []byte("runtime: "), []byte("unexpected fault address "),
	[]byte("WARNING: DATA RACE"),
}

var frameBegins = [][]byte{
	[]byte("created by "), []byte("[signal "), []byte("[originating from "), []byte("exit status "), []byte("runtime stack:"), []byte("..."),
}

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

// begins reports whether b may be the first line of a dump.
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

// frame reports whether b may be a line among the goroutines of a dump.
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

// structured reports whether b is most likely a line of some log.
func structured(b []byte) bool {
	return b[0] == '{' || bytes.HasPrefix(b, []byte("time=")) || isKlog(b) || len(b) > 10 && b[4] == b[7] && (b[4] == '/' || b[4] == '-') &&
		digits(b[:4])
}
