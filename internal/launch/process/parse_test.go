//go:build linux

package process

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/plugin"
)

func FuzzRecord(f *testing.F) {
	f.Add("start", "1", "/run/x y", "a\nb\"\\\xff")
	f.Add("", "", "", "")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		var files []string
		socket := plugin.SocketID{Device: 1, Inode: uint64(len(a)), Birth: 1}
		said := record{recordStart, "1"}
		for _, word := range []string{a, b, c, d} {
			if word = strings.ReplaceAll(word, "\x00", ""); word != "" { // a path has no NUL byte and is not empty
				files, said = append(files, word), append(said, word, socket.String())
			}
		}
		w := newGuardedProcesses()
		w.listen(bytes.NewReader(append(said.encode(), record{recordCgroup, "/x"}.encode()...)))
		got := w.remove["1"]
		if !slices.Equal(got, files) || w.cgroup != "/x" {
			t.Errorf("%q came back as %q, and the next record as %q", said, got, w.cgroup)
		}
		for _, file := range got {
			if w.sockets[file] != socket {
				t.Errorf("the socket %v of %q came back as %v", socket, file, w.sockets[file])
			}
		}
	})
}

// A watchdog parses or skips any record.
func FuzzWard(f *testing.F) {
	f.Add("start\x001\x00/f\x00\x00end\x001\x00\x00")
	f.Add("start\x00\x00cgroup\x00/x\x00\x00end\x007\x00\x00sta")
	fuzzcorpus.Add(f)
	f.Fuzz(func(_ *testing.T, text string) {
		w := newGuardedProcesses()
		w.listen(strings.NewReader(text))
	})
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("42 (a) b) (c) S 7 42 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"))
	f.Add([]byte(")"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := parseStat(b); ok && (s.state == 0 || bytes.Count(b, []byte{')'}) == 0) {
			t.Errorf("%q was read as %+v", b, s)
		}
	})
}

func TestParseStat(t *testing.T) {
	got, ok := parseStat([]byte("42 (a) Z 9 9 (c) S 7 41 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"))
	if want := (procStat{state: 'S', parent: 7, group: 41, start: 12345}); !ok || got != want {
		t.Errorf("%+v, %v, want %+v", got, ok, want)
	}
	for _, b := range []string{"", "1 (x) S", "1 (x) S a 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0",
		"S 7 41 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"} {
		if got, ok := parseStat([]byte(b)); ok {
			t.Errorf("%q was read as %+v", b, got)
		}
	}
	if s, ok := readStat(os.Getpid()); !ok || s.parent != os.Getppid() || !s.alive() || s.start == 0 || s.start > now() {
		t.Errorf("this process: %+v, %v", s, ok)
	}
}
