package pluginlog

import (
	"encoding/binary"
	"log/slog"
	"math"
	"sort"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// segmentSize is the unit in which a ring drops entries, and the most that a slow reader keeps from being garbage collected.
const segmentSize = 16 << 10

// headerSize is the length of the header of an entry: flags, length, time in nanoseconds.
const headerSize = 1 + 4 + 8

// flags describe the bytes of an entry. The lowest two bits are the index of its source in sources.
type flags byte

const (
	sourceMask flags = 1<<2 - 1
	flagCut    flags = 1 << iota << 1 // the entry was cut
	flagTrace                         // a line of a dump of the Go runtime
	flagRecord                        // a record that was encoded by encode, not a line
)

var sources = [4]string{Stdout, Stderr, RPC, fromHost}

func sourceFlags(s string) flags {
	for i, known := range sources {
		if s == known {
			return flags(i)
		}
	}
	return 0
}

// ring holds the newest entries, up to a limit of bytes. Entries are not moved or changed, so a reader needs the lock of the Log only to
// find them.
type ring struct {
	keep     int
	size     int        // bytes in all segments but the newest
	next     uint64     // number of the next entry; those of a Log begin at 1
	segments []*segment // oldest first
}

type segment struct {
	first uint64 // number of its first entry
	data  []byte
}

type entry struct {
	flags flags
	at    time.Time
	data  []byte
}

func (r *ring) append(f flags, at time.Time, data []byte) {
	length := headerSize + len(data)
	limit := min(segmentSize, r.keep/4)
	last := len(r.segments) - 1
	if last < 0 || len(r.segments[last].data) > 0 && len(r.segments[last].data)+length > limit {
		if last >= 0 {
			r.size += len(r.segments[last].data)
		}
		next := &segment{first: r.next}
		if last >= 0 { // the first segment grows, because most plugins print little
			next.data = make([]byte, 0, max(limit, length))
		}
		r.segments = append(r.segments, next)
		last++
		for r.size+max(limit, length) > r.keep && len(r.segments) > 1 {
			r.size -= len(r.segments[0].data)
			r.segments[0] = nil
			r.segments = r.segments[1:]
			last--
		}
	}
	s := r.segments[last]
	s.data = append(s.data, byte(f))
	s.data = binary.LittleEndian.AppendUint32(s.data, uint32(len(data)))
	s.data = binary.LittleEndian.AppendUint64(s.data, uint64(at.UnixNano()))
	s.data = append(s.data, data...)
	r.next++
}

// cut takes the first entry off data, which comes from a ring and is not empty.
func cut(data []byte) (entry, []byte) {
	end := headerSize + int(binary.LittleEndian.Uint32(data[1:]))
	return entry{
		flags: flags(data[0]),
		at:    time.Unix(0, int64(binary.LittleEndian.Uint64(data[5:]))),
		data:  data[headerSize:end],
	}, data[end:]
}

// cursor is where a reader of a ring is. It holds at most one segment.
type cursor struct {
	seq     uint64 // number of the next entry to read
	segment *segment
	offset  int
}

// seek returns a cursor before the newest n entries, or before the oldest one if there are fewer.
func (r *ring) seek(n uint64) cursor {
	if len(r.segments) == 0 {
		return cursor{seq: r.next}
	}
	seq := max(r.next-min(n, r.next), r.segments[0].first)
	if seq == r.next {
		last := r.segments[len(r.segments)-1]
		return cursor{seq: seq, segment: last, offset: len(last.data)}
	}
	s := r.segments[r.find(seq)]
	c := cursor{seq: s.first, segment: s}
	for rest := s.data; c.seq < seq; c.seq++ {
		_, rest = cut(rest)
		c.offset = len(s.data) - len(rest)
	}
	return c
}

func (r *ring) find(seq uint64) int {
	return sort.Search(len(r.segments), func(i int) bool { return r.segments[i].first > seq }) - 1
}

// read returns entries after the cursor, and how many entries before them were dropped. data is empty if there are none. It stays valid
// when the ring changes. The caller moves the cursor by advance.
func (r *ring) read(c *cursor) (data []byte, missed uint64) {
	if c.segment != nil && c.offset < len(c.segment.data) {
		return c.segment.data[c.offset:], 0
	}
	if c.seq == r.next {
		return nil, 0
	}
	oldest := r.segments[0]
	if c.seq < oldest.first {
		missed = oldest.first - c.seq
		c.seq = oldest.first
	}
	c.segment = r.segments[r.find(c.seq)]
	c.offset = 0
	return c.segment.data, missed
}

// advance moves c behind the first entry of data, which read returned.
func (c *cursor) advance(data []byte) (e entry, rest []byte) {
	e, rest = cut(data)
	c.seq++
	c.offset += len(data) - len(rest)
	return e, rest
}

// encode appends the level, message and attributes of r to b. It omits attributes, and the end of the message, above limit bytes.
func encode(b []byte, r plugin.LogRecord, limit int) (encoded []byte, isCut bool) {
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

// decode is the inverse of encode, and escapes the text.
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
