package sock

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestStartTimeOfStrangeCommands(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21"
	for stat, want := range map[string]uint64{
		"7 (cat)" + rest:         4242,
		"7 (a b) c)" + rest:      4242,
		"7 () R 1 (x) 9)" + rest: 4242,
		"7 (cat) S 1 2 3":        0,
		"7 (cat":                 0,
		"":                       0,
		"7 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 -1": 0,
	} {
		if got := parseStartTime([]byte(stat)); got != want {
			t.Errorf("parseStartTime(%q) = %d, want %d", stat, got, want)
		}
	}
	if startTime(os.Getpid()) == 0 {
		t.Error("this process has no start time")
	}
	if startTime(1<<22+1) != 0 {
		t.Error("a process that cannot exist has a start time")
	}
}

// TestLongestStat has the longest line that the kernel can make, as far as it is needed, in the buffer for it.
func TestLongestStat(t *testing.T) {
	line := "4194304 (" + strings.Repeat(")", 64) + ") S" + strings.Repeat(" -9223372036854775808", 18) + " 18446744073709551615 "
	if got := parseStartTime([]byte(line)[:min(len(line), maxStat)]); got != math.MaxUint64 {
		t.Errorf("start time %d of a line of %d bytes", got, len(line))
	}
}

func FuzzParseStartTime(f *testing.F) {
	f.Add([]byte("7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(_ *testing.T, stat []byte) { parseStartTime(stat) })
}

func TestBootID(t *testing.T) {
	if id := BootID(); !regexp.MustCompile(`^[0-9a-f-]{36}$`).MatchString(id) || id != BootID() {
		t.Errorf("boot ID %q", id)
	}
}

func TestProbe(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	cmd, said := startChild(t, "serve", path)
	if said != "listening" {
		t.Fatal(said)
	}
	peer, err := Probe(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	want := Credentials{Peer: plugin.Peer{PID: pid, Start: Start(pid), Boot: BootID()}, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if peer != want || peer.Start == 0 {
		t.Errorf("peer %+v, want %+v", peer, want)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if _, err := Probe(t.Context(), path); !IsRefused(err) {
		t.Errorf("probe of a dead socket: %v", err)
	}

	full := filepath.Join(dir, "full")
	fillBacklog(t, full)
	if peer, err := Probe(t.Context(), full); err != nil || peer != (Credentials{}) {
		t.Errorf("probe of a busy socket: %+v, %v", peer, err)
	}
}

// TestStart: a process has one start, whoever asks, which is nobody else's, and keeps it when it was noted in the older form.
func TestStart(t *testing.T) {
	t.Run("Numbered", func(t *testing.T) {
		if !numbered() {
			t.Skip("the kernel does not number processes")
		}
		testStart(t)
	})
	t.Run("Times", func(t *testing.T) {
		before := numbered
		defer func() { numbered = before }()
		numbered = func() bool { return false }
		testStart(t)
	})
}

func testStart(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	cmd, said := startChild(t, "serve", path)
	if said != "listening" {
		t.Fatal(said)
	}
	pid := cmd.Process.Pid
	conn := dial(t, path)
	peer, err := PeerOf(conn)
	if err != nil {
		t.Fatal(err)
	}
	start, ticks := Start(pid), startTime(pid)
	for what, is := range map[string]bool{
		"has a start":                   start != 0,
		"is the peer":                   peer.PID == pid && peer.Start == start,
		"has the same one again":        start == Start(pid),
		"is it":                         Is(pid, start),
		"is it by its start time":       Is(pid, ticks),
		"is another one":                Start(os.Getpid()) != start && !Is(os.Getpid(), start) && !Is(os.Getpid(), ticks+1),
		"is not none":                   !Is(pid, 0),
		"has a new start for the old":   Renew(pid, ticks) == start && Renew(pid, start) == start,
		"has none for that of another":  Renew(pid, ticks+1) == ticks+1,
		"is numbered if the kernel can": start&ofPidfs != 0 == numbered(),
	} {
		if !is {
			t.Errorf("process %d with start %d: not %q", pid, start, what)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if peer, err := PeerOf(conn); err != nil || peer.PID != pid || peer.Start != 0 {
		t.Errorf("the peer that has ended is %+v, %v", peer, err)
	}
	if Start(pid) != 0 || Is(pid, start) || Is(pid, ticks) || Renew(pid, ticks) != ticks {
		t.Error("a process that has ended has a start")
	}
}
