package leaktest

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

func TestLeftOver(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	before := open()
	f, err := os.Create(t.TempDir() + "/forgotten")
	if err != nil {
		t.Fatal(err)
	}
	if left := leftOver(before); len(left) != 1 || !strings.HasSuffix(left[0], "/forgotten") {
		t.Errorf("left %q", left)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if left := leftOver(before); len(left) != 0 {
		t.Errorf("left %q when nothing is", left)
	}
}
