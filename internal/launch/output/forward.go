package output

import (
	"context"
	"log/slog"
	"time"
)

// forward hands records to the Handler until there are none left. There is at most one such goroutine per Log.
func (l *Log) forward() {
	l.mu.Lock()
	c := l.position
	for {
		data, missed := l.ring.read(&c)
		if len(data) == 0 {
			break
		}
		l.stats.Missed += missed
		l.mu.Unlock()
		if missed > 0 {
			r := missing("records missed: the log is too slow", missed)
			r.Time = time.Now()
			l.hand(sourceFlags(Host), r)
		}
		for len(data) > 0 {
			var e entry
			e, data = c.advance(data)
			l.hand(e.flags&sourceMask, e.record(0))
		}
		l.mu.Lock()
	}
	l.position = c
	close(l.sending)
	l.sending = nil
	l.mu.Unlock()
}

// hand gives one record to the Handler. Its error has nowhere to be told: it is the log that fails.
func (l *Log) hand(source flags, r Record) {
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

// reserved says whether a key is one that records have in the log. An attribute of the plugin must not have it too: of two equal keys, most
// readers of JSON take the last, and a plugin could log in the name of another.
func reserved(key string) bool {
	switch key {
	case slog.TimeKey, slog.LevelKey, slog.MessageKey, slog.SourceKey, pluginKey, streamKey:
		return true
	}
	return false
}
