package handshake

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIntroduction(t *testing.T) {
	for name, tc := range map[string]struct {
		say  func(pen *os.File)
		want string
	}{
		"what was said":   {func(pen *os.File) { Introduce(pen, []byte("it is me")) }, "it is me"},
		"nothing yet":     {func(*os.File) {}, ""},
		"nothing at all":  {func(pen *os.File) { _ = pen.Close() }, ""},
		"the longest":     {func(pen *os.File) { Introduce(pen, []byte(strings.Repeat("x", maxIntroduction))) }, strings.Repeat("x", maxIntroduction)},
		"longer":          {func(pen *os.File) { Introduce(pen, []byte(strings.Repeat("x", maxIntroduction+1))) }, ""},
		"more, by itself": {func(pen *os.File) { _, _ = pen.WriteString(strings.Repeat("x", 2*maxIntroduction)) }, strings.Repeat("x", maxIntroduction)},
	} {
		t.Run(name, func(t *testing.T) {
			i, pen, err := NewIntroduction()
			if err != nil {
				t.Fatal(err)
			}
			defer pen.Close()
			late, err := unix.Dup(int(pen.Fd())) // for what is written after the plugin has closed its own
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(late)
			tc.say(pen)
			if got := string(i.Take()); got != tc.want {
				t.Errorf("it has said %d bytes, want %d", len(got), len(tc.want))
			}
			if _, err := unix.Write(late, []byte("late")); !errors.Is(err, unix.EPIPE) {
				t.Errorf("a write after it was taken: error %v, want %v: the end that is read is still open", err, unix.EPIPE)
			}
			if again := i.Take(); again != nil {
				t.Errorf("taken again, it is %q", again)
			}
		})
	}
	if none := (*Introduction)(nil).Take(); none != nil {
		t.Errorf("of none, it is %q", none)
	}
}

// TestIntroductionToNobody: a host that has gone, or has asked before, ends no plugin.
func TestIntroductionToNobody(t *testing.T) {
	i, pen, err := NewIntroduction()
	if err != nil {
		t.Fatal(err)
	}
	i.Take()
	Introduce(pen, []byte("it is me"))
}
