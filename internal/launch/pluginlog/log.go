// Package pluginlog converts the output of a launched plugin, and the records that the plugin logs through its host, into structured log
// records. It limits their memory and rate, and never blocks the plugin.
//
// The goroutine that drains a pipe splits the output into lines and copies them into a ring of bytes. A line is parsed when it is read from
// the ring: by Tail, Follow, or the goroutine that forwards records to the log of the host, which exists only while there are records to
// forward. So neither a slow log nor a line that is expensive to parse delays the plugin. A reader that is too slow loses records, and
// receives a record with their number. Lines above the rate limit are only counted, except the last lines before the end of the output,
// which show why a plugin failed.
//
// The package parses lines of slog (JSON, text and the default format), JSON lines with the keys of slog or hclog, lines of klog, and stack
// traces of the Go runtime. All other lines are text. A line without a level has the level Info on standard output and Warn on standard
// error. Control characters and invalid UTF-8 are always escaped.
package pluginlog

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// summaryInterval is the interval of records with the number of dropped lines.
const summaryInterval = time.Second

// Log holds the newest output of one plugin, possibly of several processes. Its methods are safe for concurrent use.
type Log struct {
	name    string
	handler [len(sources)]slog.Handler // one per source, with its attributes; nil if records are not forwarded
	maxLine int                        // bytes of a line that are kept
	burst   int                        // lines that may come at once; at least a tenth of the rate

	mu         sync.Mutex
	limiter    limiter
	ring       ring
	stats      plugin.LogStats
	missed     uint64        // records that left the buffer before they were forwarded
	unreported uint64        // dropped lines that no record has counted yet
	timer      *time.Timer   // calls summarise; nil until a line is dropped
	wake       chan struct{} // closed by the next change, for followers; nil if no follower waits
	sending    chan struct{} // closed when the goroutine that runs forward has ended; nil if none runs
	position   cursor        // where forward continues; owned by its goroutine while that runs
	closed     bool
}

// New returns a Log for the output of the plugin with a name. Records are forwarded to the handler, if it is not nil, with the name as the
// attribute "plugin". The rate is how many lines per second are kept and forwarded: zero means 1,000, a negative rate no limit. A long line
// counts once per KiB. New starts no goroutine.
func New(name string, handler slog.Handler, rate int) *Log {
	l := &Log{
		name: name, maxLine: maxLine, burst: burst, limiter: newLimiter(cmp.Or(rate, defaultRate), burst),
		ring: ring{keep: keep, next: 1}, position: cursor{seq: 1},
	}
	if handler != nil {
		named := handler.WithAttrs([]slog.Attr{slog.String(pluginKey, name)})
		for i, source := range sources {
			l.handler[i] = named.WithAttrs([]slog.Attr{slog.String(streamKey, source)})
		}
	}
	return l
}

type contextKey struct{}

// NewContext returns a context that carries a log for [host.Host.Launch], which writes the output of the plugin to this log and does not
// close it.
func NewContext(ctx context.Context, l *Log) context.Context {
	return context.WithValue(ctx, contextKey{}, l)
}

// FromContext returns the log in ctx; nil if there is none.
func FromContext(ctx context.Context) *Log {
	l, _ := ctx.Value(contextKey{}).(*Log)
	return l
}

// Add adds a record that the plugin logged. It has the same limits as a line. A record without a time gets the current time; Seq is
// ignored. Add does not block.
func (l *Log) Add(r plugin.LogRecord) {
	now := time.Now()
	data, isCut := encode(nil, r, l.maxLine)
	f := sourceFlags(r.Source) | flagRecord
	at := r.Time
	if !representable(at) {
		at = now
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.stats.Lines++
	l.stats.Bytes += uint64(len(data))
	l.limiter.advance(now)
	if !l.limiter.take(len(data)) {
		l.drop(1)
		return
	}
	l.keep(f, at, data, isCut)
	l.publish()
}

// representable reports whether an entry can hold the time.
func representable(t time.Time) bool {
	return t.After(time.Unix(0, math.MinInt64)) && t.Before(time.Unix(0, math.MaxInt64)) && !t.IsZero()
}

// keep appends an entry to the ring. The caller holds l.mu, and calls publish after the last entry.
func (l *Log) keep(f flags, at time.Time, data []byte, isCut bool) {
	if isCut {
		f |= flagCut
		l.stats.Cut++
	}
	l.ring.append(f, at, data)
}

// publish wakes all readers, and reports whether there are records to forward. The caller holds l.mu.
func (l *Log) publish() (forwarding bool) {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
	if l.handler[0] != nil && l.sending == nil && l.position.seq < l.ring.next {
		l.sending = make(chan struct{})
		go l.forward()
	}
	return l.sending != nil
}

// drop counts n dropped lines. The caller holds l.mu.
func (l *Log) drop(n uint64) {
	if n == 0 {
		return
	}
	l.stats.Dropped += n
	if l.unreported == 0 {
		if l.timer == nil {
			l.timer = time.AfterFunc(summaryInterval, l.summarise)
		} else {
			l.timer.Reset(summaryInterval)
		}
	}
	l.unreported += n
}

func (l *Log) summarise() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report()
}

// report adds a record with the number of dropped lines, if there are any. The caller holds l.mu.
func (l *Log) report() {
	if l.unreported == 0 || l.closed {
		return
	}
	data, _ := encode(nil, missing("lines dropped: the plugin prints more than its rate limit allows", l.unreported), math.MaxInt)
	l.unreported = 0
	l.keep(sourceFlags(fromHost)|flagRecord, time.Now(), data, false)
	l.publish()
}

func missing(message string, n uint64) plugin.LogRecord {
	return plugin.LogRecord{Level: slog.LevelWarn, Message: message, Attrs: []slog.Attr{slog.Int64("count", int64(n))}, Source: fromHost}
}

// Tail implements [plugin.Log].
func (l *Log) Tail(n int) []plugin.LogRecord {
	if n <= 0 {
		n = math.MaxInt
	}
	l.mu.Lock()
	c := l.ring.seek(uint64(n))
	end := l.ring.next
	l.mu.Unlock()

	records := make([]plugin.LogRecord, 0, end-c.seq)
	for c.seq < end {
		l.mu.Lock()
		data, _ := l.ring.read(&c)
		l.mu.Unlock()
		for len(data) > 0 && c.seq < end {
			seq := c.seq
			var e entry
			e, data = c.advance(data)
			records = append(records, e.record(seq, nil))
		}
	}
	return records
}

// Follow implements [plugin.Log].
func (l *Log) Follow(ctx context.Context, n int) iter.Seq[plugin.LogRecord] {
	return func(yield func(plugin.LogRecord) bool) {
		if n < 0 {
			n = math.MaxInt
		}
		l.mu.Lock()
		c := l.ring.seek(uint64(n))
		l.mu.Unlock()
		for ctx.Err() == nil {
			l.mu.Lock()
			data, missed := l.ring.read(&c)
			if len(data) == 0 {
				if l.closed {
					l.mu.Unlock()
					return
				}
				if l.wake == nil {
					l.wake = make(chan struct{})
				}
				wake := l.wake
				l.mu.Unlock()
				select {
				case <-wake:
				case <-ctx.Done():
				}
				continue
			}
			l.mu.Unlock()
			if missed > 0 {
				r := missing("records missed: this reader is too slow", missed)
				r.Seq, r.Time = c.seq-1, time.Now()
				if !yield(r) {
					return
				}
			}
			for len(data) > 0 && ctx.Err() == nil {
				seq := c.seq
				var e entry
				e, data = c.advance(data)
				if !yield(e.record(seq, nil)) {
					return
				}
			}
		}
	}
}

// SetRate changes the rate for future lines; see [New].
func (l *Log) SetRate(rate int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := newLimiter(cmp.Or(rate, defaultRate), l.burst)
	l.limiter.rate, l.limiter.burst = fresh.rate, fresh.burst
	l.limiter.tokens = min(l.limiter.tokens, fresh.burst)
}

// Stats implements [plugin.Log].
func (l *Log) Stats() plugin.LogStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Close closes the Log. Followers return after the last record, Tail still works, and later output is read and discarded. Close blocks
// until all records are forwarded. If ctx is done before that, Close returns its error, and the forwarding goroutine ends when the handler
// returns.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	l.report()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.publish()
	sending := l.sending
	l.mu.Unlock()
	if sending == nil {
		return nil
	}
	select {
	case <-sending:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The sources of records.
const (
	Stdout   = "stdout"
	Stderr   = "stderr"
	RPC      = "log"  // through the Log call of the host's gRPC service
	fromHost = "host" // records of this package about lost records
)

// The attributes of every forwarded record: the plugin's name and the source.
const pluginKey, streamKey = "plugin", "stream"

const (
	maxLine     = 64 << 10
	defaultRate = 1000
	burst       = 2000      // lines of 100 bytes fill keep
	keep        = 256 << 10 // size in bytes of the ring, which is allocated as needed
)

// forward forwards records until there are none left. At most one goroutine of a Log runs it.
func (l *Log) forward() {
	attrs := make([]slog.Attr, 0, usualAttrs) // reused for each line
	l.mu.Lock()
	c := l.position
	for {
		data, missed := l.ring.read(&c)
		if len(data) == 0 {
			break
		}
		l.missed += missed
		l.mu.Unlock()
		if missed > 0 {
			r := missing("records missed: the log is too slow", missed)
			r.Time = time.Now()
			l.handle(sourceFlags(fromHost), r)
		}
		for len(data) > 0 {
			var e entry
			e, data = c.advance(data)
			l.handle(e.flags&sourceMask, e.record(0, attrs))
		}
		l.mu.Lock()
	}
	l.position = c
	close(l.sending)
	l.sending = nil
	l.mu.Unlock()
}

// handle calls the handler with a record. An error is ignored, because it could only be logged to the same handler.
func (l *Log) handle(source flags, r plugin.LogRecord) {
	ctx := context.Background()
	h := l.handler[source]
	if !h.Enabled(ctx, r.Level) {
		return
	}
	record := slog.NewRecord(r.Time, r.Level, r.Message, 0)
	for _, a := range r.Attrs {
		if reserved(a.Key) {
			a.Key = "plugin." + a.Key
		}
		record.AddAttrs(a)
	}
	_ = h.Handle(ctx, record)
}

// reserved reports whether records in the log of the host have a key. An attribute of the plugin must not have the same key: most JSON
// parsers use the last one of two equal keys, so the plugin could pretend to be another plugin.
func reserved(key string) bool {
	switch key {
	case slog.TimeKey, slog.LevelKey, slog.MessageKey, slog.SourceKey, pluginKey, streamKey:
		return true
	}
	return false
}

// refill is the interval at which a limiter adds tokens. It adds many at a time, so that consecutive lines are kept or dropped together.
const refill = 100 * time.Millisecond

type limiter struct {
	rate   float64 // tokens per second; negative: no limit
	burst  float64
	tokens float64
	last   time.Time
}

func newLimiter(rate, burst int) limiter {
	b := float64(max(burst, rate/10, 1))
	return limiter{rate: float64(rate), burst: b, tokens: b}
}

func (l *limiter) advance(now time.Time) {
	if elapsed := now.Sub(l.last); elapsed >= refill {
		l.tokens = min(l.burst, l.tokens+l.rate*elapsed.Seconds())
		l.last = now
	}
}

// take reports whether a line of n bytes is within the limit, and removes its tokens. A long line may make their number negative.
func (l *limiter) take(n int) bool {
	if l.rate < 0 {
		return true
	}
	if l.tokens < 1 {
		return false
	}
	l.tokens -= float64(1 + n/1024)
	return true
}

// finalWords is the number of lines that WithLastWords adds.
const finalWords = 5

// WithLastWords adds the last lines that a process wrote to standard error since a time, if any, to its exit error.
func WithLastWords(err error, l plugin.Log, since time.Time) error {
	var words []string
	for _, r := range slices.Backward(l.Tail(0)) {
		if r.Time.Before(since) || len(words) == finalWords {
			break
		}
		if r.Source == Stderr {
			words = append(words, r.Message)
		}
	}
	if len(words) == 0 {
		return err
	}
	slices.Reverse(words)
	label := "last stderr line"
	if len(words) > 1 {
		label += "s"
	}
	return fmt.Errorf("%w; %s: %s", err, label, strings.Join(words, " | "))
}
