package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModuleIsSmall counts what whoever imports the library downloads: the regular files that are in no module below.
func TestModuleIsSmall(t *testing.T) {
	const most = 1200
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root:
			_, notModule := os.Stat(filepath.Join(path, "go.mod"))
			if notModule == nil || strings.HasPrefix(entry.Name(), ".") {
				return filepath.SkipDir
			}
		case entry.Type().IsRegular():
			files++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files > most {
		t.Errorf("the module has %d files, at most %d are allowed: what only tests need belongs into another module, such as integration", files, most)
	}
}
