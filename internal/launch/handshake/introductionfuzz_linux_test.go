package handshake

import (
	"bytes"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

// FuzzIntroduction has a plugin write anything to its introduction, in two parts. The host takes what fits into an introduction, once, and
// never waits.
func FuzzIntroduction(f *testing.F) {
	f.Add([]byte("it is me"), []byte{})
	f.Add(bytes.Repeat([]byte{'x'}, maxIntroduction), []byte("y"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		all := append(bytes.Clone(first), second...)
		if len(all) > 32<<10 {
			return // the pipe would be full, and the plugin would wait
		}
		i, pen, err := NewIntroduction()
		if err != nil {
			t.Fatal(err)
		}
		defer pen.Close()
		for _, part := range [][]byte{first, second} {
			if _, err := pen.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if said, want := i.Take(), all[:min(len(all), maxIntroduction)]; !bytes.Equal(said, want) {
			t.Errorf("of %d and %d bytes, %d were taken: %q, want %q", len(first), len(second), len(said), said, want)
		}
		if again := i.Take(); again != nil {
			t.Errorf("taken again, it is %q", again)
		}
	})
}
