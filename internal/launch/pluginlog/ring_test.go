package pluginlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestRing: a ring holds the newest entries, all of them up to its bound, and cursors see each entry once, in order, or are told how many
// they missed.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keep := rapid.SampledFrom([]int{100, 5000, 300_000}).Draw(t, "keep")
		r := ring{keep: keep, next: 1}
		bytesOf := func(seq uint64, size int) []byte { return append(fmt.Append(nil, seq, " "), make([]byte, size)...) }
		sizes := map[uint64]int{}
		slow := cursor{seq: 1}
		total, largest := 0, 0

		read := func(c *cursor) (missed uint64) {
			data, missed := r.read(c)
			if (len(data) == 0) != (c.seq == r.next) {
				t.Fatalf("nothing to read at %d of %d", c.seq, r.next)
			}
			for len(data) > 0 {
				seq := c.seq
				var e entry
				e, data = c.advance(data)
				if want := bytesOf(seq, sizes[seq]); !bytes.Equal(e.data, want) || e.at.UnixNano() != int64(seq) {
					t.Fatalf("entry %d is %.20q at %d", seq, e.data, e.at.UnixNano())
				}
			}
			return missed
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				for range rapid.IntRange(1, 50).Draw(t, "n") {
					size := rapid.SampledFrom([]int{0, 1, 90, 3000, 20_000}).Draw(t, "size")
					data := bytesOf(r.next, size)
					sizes[r.next] = size
					total += headerSize + len(data)
					largest = max(largest, headerSize+len(data))
					r.append(0, time.Unix(0, int64(r.next)), data)
				}
			},
			"read": func(t *rapid.T) {
				before := slow.seq
				if missed := read(&slow); missed > 0 && before+missed < r.segments[0].first {
					t.Fatalf("missed %d after %d, but the oldest is %d", missed, before, r.segments[0].first)
				}
			},
			"seek": func(t *rapid.T) {
				n := rapid.Uint64Range(0, 200).Draw(t, "n")
				c := r.seek(n)
				if len(r.segments) > 0 && c.seq != max(r.next-min(n, r.next-1), r.segments[0].first) {
					t.Fatalf("the newest %d of %d begin at %d", n, r.next, c.seq)
				}
				for c.seq < r.next {
					if missed := read(&c); missed > 0 {
						t.Fatalf("missed %d", missed)
					}
				}
			},
			"": func(t *rapid.T) {
				held := 0
				for _, s := range r.segments {
					held += len(s.data)
				}
				if held > max(keep, largest) {
					t.Fatalf("%d bytes held of at most %d", held, keep)
				}
				if total <= keep/4 && held != total {
					t.Fatalf("%d bytes held of %d", held, total)
				}
			},
		})
	})
}

func TestEncode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zé世]{0,30}`)
		want := plugin.LogRecord{Level: slog.Level(rapid.IntRange(-9, 13).Draw(t, "level")), Message: text.Draw(t, "message")}
		size := len(want.Message)
		for range rapid.SampledFrom([]int{0, 1, 9}).Draw(t, "attrs") {
			attr := slog.Attr{Key: text.Draw(t, "key")}
			attr.Value = rapid.SampledFrom([]slog.Value{
				slog.Int64Value(math.MinInt64), slog.Float64Value(1.5), slog.BoolValue(true), slog.BoolValue(false), slog.StringValue(text.Draw(t, "value")),
			}).Draw(t, "kind")
			if attr.Equal(slog.Attr{}) {
				continue
			}
			want.Attrs = append(want.Attrs, attr)
			size += len(attr.Key) + len(attr.Value.String()) + 8
		}
		limit := rapid.IntRange(1, 100).Draw(t, "limit")
		data, isCut := encode(nil, want, limit)
		var got plugin.LogRecord
		got.Level, got.Message, got.Attrs = decode(data)
		left := len(got.Message)
		for _, attr := range got.Attrs {
			if left += len(attr.Key); attr.Value.Kind() == slog.KindString {
				left += len(attr.Value.String())
			}
		}
		if left > limit {
			t.Fatalf("%d bytes are left of at most %d", left, limit)
		}
		if isCut {
			if size <= limit {
				t.Fatalf("%d bytes were cut at %d", size, limit)
			}
			if len(got.Message) < len(want.Message) {
				want.Message = want.Message[:len(got.Message)]
			}
			want.Attrs = want.Attrs[:min(len(want.Attrs), len(got.Attrs))]
		}
		if got.Level != want.Level || got.Message != want.Message || len(got.Attrs) != len(want.Attrs) {
			t.Fatalf("%v became %v", want, got)
		}
		for i := range got.Attrs {
			if !got.Attrs[i].Equal(want.Attrs[i]) {
				t.Fatalf("%v became %v", want, got)
			}
		}
	})
}
