package output

import (
	"encoding/binary"
	"log/slog"
	"math"
)

// encode appends level, message and attributes of r to b, at most limit bytes of strings and numbers; what goes beyond is left out.
func encode(b []byte, r Record, limit int) (encoded []byte, isCut bool) {
	message := r.Message
	if len(message) > limit {
		message, isCut = message[:runeBoundary([]byte(message[:limit+1]), limit)], true
	}
	limit -= len(message)
	b = binary.AppendVarint(b, int64(r.Level))
	b = appendString(b, message)
	for _, attr := range r.Attrs {
		if attr.Equal(slog.Attr{}) {
			continue
		}
		value := attr.Value.Resolve()
		var text string
		size := len(attr.Key) + 8
		switch value.Kind() {
		case slog.KindInt64, slog.KindFloat64, slog.KindBool:
		default:
			text = value.String()
			size = len(attr.Key) + len(text)
		}
		if size > limit {
			return b, true
		}
		limit -= size
		b = appendString(b, attr.Key)
		switch value.Kind() {
		case slog.KindInt64:
			b = binary.AppendVarint(append(b, byte(slog.KindInt64)), value.Int64())
		case slog.KindFloat64:
			b = binary.LittleEndian.AppendUint64(append(b, byte(slog.KindFloat64)), math.Float64bits(value.Float64()))
		case slog.KindBool:
			var bit byte
			if value.Bool() {
				bit = 1
			}
			b = append(b, byte(slog.KindBool), bit)
		default:
			b = appendString(append(b, byte(slog.KindString)), text)
		}
	}
	return b, isCut
}

// decode is the inverse of encode, and makes what it reads harmless.
func decode(b []byte) (level slog.Level, message string, attrs []slog.Attr) {
	number, b := takeVarint(b)
	message, b = takeString(b)
	for len(b) > 0 {
		var attr slog.Attr
		attr.Key, b = takeString(b)
		kind := slog.Kind(b[0])
		b = b[1:]
		switch kind {
		case slog.KindInt64:
			var v int64
			v, b = takeVarint(b)
			attr.Value = slog.Int64Value(v)
		case slog.KindFloat64:
			attr.Value = slog.Float64Value(math.Float64frombits(binary.LittleEndian.Uint64(b)))
			b = b[8:]
		case slog.KindBool:
			attr.Value = slog.BoolValue(b[0] == 1)
			b = b[1:]
		default:
			var v string
			v, b = takeString(b)
			attr.Value = slog.StringValue(v)
		}
		attrs = append(attrs, attr)
	}
	return slog.Level(number), message, attrs
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func takeString(b []byte) (string, []byte) {
	n, size := binary.Uvarint(b)
	end := size + int(n)
	return clean(string(b[size:end])), b[end:]
}

func takeVarint(b []byte) (int64, []byte) {
	v, size := binary.Varint(b)
	return v, b[size:]
}
