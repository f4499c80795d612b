package archtest

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoProgramIsCommitted finds programs that "go build" left in the directory of their source: who clones the repository would download
// them forever.
func TestNoProgramIsCommitted(t *testing.T) {
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Skipf("NOT TESTED: git cannot list the files: %v", err)
	}
	for path := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		file, err := os.Open(filepath.Join(root, path))
		if err != nil {
			continue // removed, and not committed yet
		}
		var magic [4]byte
		_, err = io.ReadFull(file, magic[:])
		_ = file.Close()
		if err == nil && bytes.Equal(magic[:], []byte("\x7fELF")) {
			t.Errorf("%s is a program: remove it from the repository", path)
		}
	}
}
