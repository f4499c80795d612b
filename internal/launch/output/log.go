package output

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"math"
	"sync"
	"time"
)

// summaryInterval is how long lines are dropped before a record says how many.
const summaryInterval = time.Second

// Log holds the newest output of one plugin, over several lives of it if need be. All methods may be called at once from several
// goroutines.
type Log struct {
	cfg     Config
	handler [len(sources)]slog.Handler // one per source, with its attributes; nil without a Handler

	mu       sync.Mutex
	limiter  limiter
	ring     ring
	stats    Stats
	untold   uint64        // dropped lines of which no record tells yet
	timer    *time.Timer   // makes that record; set with the first drop
	wake     chan struct{} // closed with the next change, for followers; nil if none waits
	sending  chan struct{} // closed when the goroutine that forwards has ended; nil if there is none
	position cursor        // of that goroutine, which owns it while there is one
	closed   bool
}

// New makes a Log. It starts nothing.
func New(cfg Config) *Log {
	cfg = cfg.withDefaults()
	l := &Log{cfg: cfg, limiter: newLimiter(cfg.Rate, cfg.Burst), ring: ring{keep: cfg.Keep, next: 1}, position: cursor{seq: 1}}
	if cfg.Handler != nil {
		named := cfg.Handler.WithAttrs([]slog.Attr{slog.String(pluginKey, cfg.Name)})
		for i, source := range sources {
			l.handler[i] = named.WithAttrs([]slog.Attr{slog.String(streamKey, string(source))})
		}
	}
	return l
}

// Add takes a record that the plugin logged. The limits are those of lines; the time is that of arrival if r has none, and Seq is
// ignored. It never blocks.
func (l *Log) Add(r Record) {
	now := time.Now()
	data, isCut := encode(nil, r, l.cfg.MaxLine)
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

// representable says whether t is a time that an entry can hold.
func representable(t time.Time) bool {
	return t.After(time.Unix(0, math.MinInt64)) && t.Before(time.Unix(0, math.MaxInt64)) && !t.IsZero()
}

// keep puts an entry into the ring. The caller holds l.mu, and calls publish after the last one.
func (l *Log) keep(f flags, at time.Time, data []byte, isCut bool) {
	if isCut {
		f |= flagCut
		l.stats.Cut++
	}
	l.ring.append(f, at, data)
}

// publish tells all readers of what is new, and says whether there is something for the Handler. The caller holds l.mu.
func (l *Log) publish() (forwarding bool) {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
	if l.cfg.Handler != nil && l.sending == nil && l.position.seq < l.ring.next {
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
	if l.untold == 0 {
		if l.timer == nil {
			l.timer = time.AfterFunc(summaryInterval, l.summarise)
		} else {
			l.timer.Reset(summaryInterval)
		}
	}
	l.untold += n
}

// summarise makes a record of the lines that were dropped.
func (l *Log) summarise() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell()
}

// tell is summarise for callers that hold l.mu.
func (l *Log) tell() {
	if l.untold == 0 || l.closed {
		return
	}
	data, _ := encode(nil, missing("lines dropped: the plugin prints more than its rate limit allows", l.untold), math.MaxInt)
	l.untold = 0
	l.keep(sourceFlags(Host)|flagRecord, time.Now(), data, false)
	l.publish()
}

// missing is a record about others that are missing.
func missing(message string, n uint64) Record {
	return Record{Level: slog.LevelWarn, Message: message, Attrs: []slog.Attr{slog.Int64("count", int64(n))}, Source: Host}
}

// Tail returns the newest n records, oldest first; all that are held if n is not positive.
func (l *Log) Tail(n int) []Record {
	if n <= 0 {
		n = math.MaxInt
	}
	l.mu.Lock()
	c := l.ring.seek(uint64(n))
	end := l.ring.next
	l.mu.Unlock()

	records := make([]Record, 0, end-c.seq)
	for c.seq < end {
		l.mu.Lock()
		data, _ := l.ring.read(&c)
		l.mu.Unlock()
		for len(data) > 0 && c.seq < end {
			seq := c.seq
			var e entry
			e, data = c.advance(data)
			records = append(records, e.record(seq))
		}
	}
	return records
}

// Follow yields the newest n records that are held when the iteration begins, all of them if n is negative, and then what comes,
// until ctx ends or the Log is closed. A reader so slow that records it has not seen leave the buffer gets one of source Host, which
// says how many.
func (l *Log) Follow(ctx context.Context, n int) iter.Seq[Record] {
	return func(yield func(Record) bool) {
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
				if !yield(e.record(seq)) {
					return
				}
			}
		}
	}
}

// SetRate takes the place of Config.Rate for the lines that are still to come; zero is the default.
func (l *Log) SetRate(rate int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := newLimiter(cmp.Or(rate, defaultRate), l.cfg.Burst)
	l.limiter.rate, l.limiter.burst = fresh.rate, fresh.burst
	l.limiter.tokens = min(l.limiter.tokens, fresh.burst)
}

// Stats returns the counters.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Close ends the Log: followers end when they have read what is held, Tail goes on to answer, and what comes later is discarded, though
// pipes are drained as before. It blocks until the Handler has got all that is held, or until ctx ends: then it returns the error of
// ctx, and a goroutine that is stuck in the Handler ends when the Handler returns.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	l.tell()
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
