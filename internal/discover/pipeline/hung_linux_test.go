package pipeline_test

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/mounttest"
)

// TestHungPluginDir checks that a plugin directory on a file system that does not answer is an error that names it.
func TestHungPluginDir(t *testing.T) {
	if !mounttest.Isolated(t) {
		return
	}
	dir := t.TempDir()
	heal := mounttest.Hang(t, dir)
	err := pipeline.MakeDirs([]string{filepath.Join(t.TempDir(), "new"), dir})
	if err == nil || !strings.Contains(err.Error(), dir+": its file system does not answer") {
		t.Errorf("the error is %v", err)
	}
	heal()
	stacks := make([]byte, 1<<20)
	for strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "pipeline.makeDir(") { // it may still make the directory
		runtime.Gosched()
	}
}
