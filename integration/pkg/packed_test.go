package pkg

import (
	"io/fs"
	"slices"
)

// packed is a repository without what no package is made of.
type packed struct{ fs.FS }

// ReadDir implements [fs.ReadDirFS].
func (p packed) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(p.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		left := name == "." && slices.Contains([]string{".git", "bench", "bin", "dist", "examples", "integration", "tools"}, e.Name())
		return left || e.Type()&fs.ModeSymlink != 0 // as a module's archive has none
	}), err
}
