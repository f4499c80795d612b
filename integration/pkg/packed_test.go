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
	if name != "." {
		return entries, err
	}
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return slices.Contains([]string{".git", "bench", "bin", "dist", "integration", "tools"}, e.Name()) || e.Type()&fs.ModeSymlink != 0
	}), err
}
