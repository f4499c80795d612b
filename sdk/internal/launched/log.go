package launched

import (
	"context"
	"log/slog"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
)

// LogHandler returns a handler whose records go to the host, or as JSON to standard error without one. Nil means the level info.
func (s *Session) LogHandler(level slog.Leveler) slog.Handler {
	if level == nil {
		level = slog.LevelInfo
	}
	if s.shake == nil {
		return slog.NewJSONHandler(s.stderr, &slog.HandlerOptions{Level: level})
	}
	return &logHandler{queue: s.log, level: level}
}

// logHandler turns records into the host's form and queues them.
type logHandler struct {
	queue  *logQueue
	level  slog.Leveler
	prefix string // the open groups, each followed by a dot
	attrs  []*pluginv1.Attribute
}

func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	record := &pluginv1.LogRecord{Level: int32(r.Level), Message: text(r.Message), Attributes: slices.Clip(h.attrs)}
	if !r.Time.IsZero() {
		record.Time = timestamppb.New(r.Time)
	}
	r.Attrs(func(a slog.Attr) bool {
		record.Attributes = appendAttr(record.Attributes, h.prefix, a)
		return true
	})
	return h.queue.add(record)
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h2 := *h
	h2.attrs = slices.Clip(h.attrs)
	for _, a := range attrs {
		h2.attrs = appendAttr(h2.attrs, h.prefix, a)
	}
	return &h2
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	h2 := *h
	h2.prefix += name + "."
	return &h2
}
