package launched

import (
	"context"
	"encoding"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

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

// maxText bounds in bytes one message, key or value.
const maxText = 64 << 10

// appendAttr appends an attribute in the host's form: a group becomes its members, with its key before theirs.
func appendAttr(to []*pluginv1.Attribute, prefix string, a slog.Attr) []*pluginv1.Attribute {
	a.Value = a.Value.Resolve()
	if a.Value.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range a.Value.Group() {
			to = appendAttr(to, prefix, member)
		}
		return to
	}
	if a.Equal(slog.Attr{}) {
		return to
	}
	out := &pluginv1.Attribute{Key: text(prefix + a.Key)}
	switch v, kind := a.Value, a.Value.Kind(); {
	case kind == slog.KindInt64:
		out.Value = &pluginv1.Attribute_Integer{Integer: v.Int64()}
	case kind == slog.KindUint64 && v.Uint64() <= math.MaxInt64:
		out.Value = &pluginv1.Attribute_Integer{Integer: int64(v.Uint64())}
	case kind == slog.KindFloat64:
		out.Value = &pluginv1.Attribute_Number{Number: v.Float64()}
	case kind == slog.KindBool:
		out.Value = &pluginv1.Attribute_Truth{Truth: v.Bool()}
	case kind == slog.KindTime:
		out.Value = &pluginv1.Attribute_Text{Text: v.Time().Format(time.RFC3339Nano)}
	case kind == slog.KindAny:
		out.Value = &pluginv1.Attribute_Text{Text: text(anyText(v.Any()))}
	default:
		out.Value = &pluginv1.Attribute_Text{Text: text(v.String())}
	}
	return append(to, out)
}

// anyText is the text of a value as slog.TextHandler has it. A value that panics, a nil pointer for example, says so.
func anyText(v any) (s string) {
	defer func() {
		if p := recover(); p != nil {
			s = fmt.Sprintf("!PANIC: %v", p)
		}
	}()
	switch v := v.(type) {
	case error:
		return v.Error()
	case encoding.TextMarshaler:
		b, err := v.MarshalText()
		if err != nil {
			return "!ERROR: " + err.Error()
		}
		return string(b)
	}
	return fmt.Sprintf("%+v", v)
}

// text makes a string that protobuf takes, which wants valid UTF-8, and cuts it.
func text(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// ToSlog is the way back from the host's form.
func ToSlog(record *pluginv1.LogRecord) slog.Record {
	var at time.Time
	if record.Time != nil {
		at = record.Time.AsTime()
	}
	r := slog.NewRecord(at, slog.Level(record.Level), record.Message, 0)
	for _, a := range record.Attributes {
		var value slog.Value
		switch v := a.Value.(type) {
		case *pluginv1.Attribute_Text:
			value = slog.StringValue(v.Text)
		case *pluginv1.Attribute_Integer:
			value = slog.Int64Value(v.Integer)
		case *pluginv1.Attribute_Number:
			value = slog.Float64Value(v.Number)
		case *pluginv1.Attribute_Truth:
			value = slog.BoolValue(v.Truth)
		}
		r.AddAttrs(slog.Attr{Key: a.Key, Value: value})
	}
	return r
}
