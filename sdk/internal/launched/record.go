package launched

import (
	"encoding"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
)

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
	switch v := a.Value; v.Kind() {
	case slog.KindInt64:
		out.Value = &pluginv1.Attribute_Integer{Integer: v.Int64()}
	case slog.KindUint64:
		if v.Uint64() > math.MaxInt64 {
			out.Value = &pluginv1.Attribute_Text{Text: v.String()}
		} else {
			out.Value = &pluginv1.Attribute_Integer{Integer: int64(v.Uint64())}
		}
	case slog.KindFloat64:
		out.Value = &pluginv1.Attribute_Number{Number: v.Float64()}
	case slog.KindBool:
		out.Value = &pluginv1.Attribute_Truth{Truth: v.Bool()}
	case slog.KindTime:
		out.Value = &pluginv1.Attribute_Text{Text: v.Time().Format(time.RFC3339Nano)}
	case slog.KindAny:
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
