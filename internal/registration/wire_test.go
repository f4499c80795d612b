package registration

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
)

// TestWireForgets: what one plugin has sent is nothing that the next one can refer to, and who was the former uses the wire no more.
func TestWireForgets(t *testing.T) {
	var c conn
	c.init(nil)
	w := c.wire
	var block bytes.Buffer
	if err := hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: "secret", Value: "of the former"}); err != nil {
		t.Fatal(err)
	}
	decoder := w.framer.ReadMetaHeaders
	const firstOwn = "\xbe" // the index behind the static table
	for _, text := range []string{block.String(), firstOwn} {
		if fields, err := decoder.DecodeFull([]byte(text)); err != nil || len(fields) != 1 || fields[0].Name != "secret" {
			t.Fatalf("%q is %v, %v", text, fields, err)
		}
	}
	c.release()
	if fields, err := decoder.DecodeFull([]byte(firstOwn)); err == nil {
		t.Errorf("the next one refers to %v", fields)
	}
	for _, text := range []string{block.String(), firstOwn} {
		if _, err := decoder.DecodeFull([]byte(text)); err != nil {
			t.Errorf("the next one's own %q: %v", text, err)
		}
	}
	if w.reader.conn != nil || c.wire != nil {
		t.Error("the former has the wire still")
	}
	if _, err := c.call(t.Context(), time.Time{}, getInfoHeaders, nil); !errors.Is(err, errHeld) {
		t.Errorf("a call: %v", err)
	}
	if err := c.drain(nil); !errors.Is(err, errHeld) {
		t.Errorf("to settle: %v", err)
	}
}
