package dynamicplugins_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// TestLongPath: a plugin is reached at a path that is longer than a socket address can hold.
func TestLongPath(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can name a socket by a descriptor")
	}
	s := serve(t, "s")
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200))
	check(t, os.Mkdir(dir, 0o700))
	long := filepath.Join(dir, strings.Repeat("l", 200))
	check(t, os.Rename(s.path, long))
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
	info := s.info("1")
	info.ConnectionInfo.SocketPath = long
	register(t, r, info)
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	expectWho(t, client, "s")
}
