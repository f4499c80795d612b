package pipeline

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestPeerOfBefore: a peer that was saved with its start time is known by the start that connections name now.
func TestPeerOfBefore(t *testing.T) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Skip(err)
	}
	ticks, err := strconv.ParseUint(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[22-3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	was := plugin.Peer{PID: os.Getpid(), Start: ticks, Boot: sock.BootID()}
	if got, want := peerOf(was).Start, sock.Start(os.Getpid()); got != want {
		t.Errorf("start %d, want %d", got, want)
	}
	for _, other := range []plugin.Peer{{PID: was.PID, Start: ticks, Boot: "another"}, {PID: was.PID, Start: ticks - 1, Boot: was.Boot}} {
		if got := peerOf(other); got != other {
			t.Errorf("%+v became %+v", other, got)
		}
	}
}
