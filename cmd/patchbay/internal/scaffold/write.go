package scaffold

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Write writes the files into dir, which is made if it is not there. It overwrites nothing: if any of them exists, nothing is written, and
// the error says which. If it fails later, it removes what it has written.
func Write(dir string, files []File) (err error) {
	var taken []string
	for _, f := range files {
		switch _, err := os.Lstat(filepath.Join(dir, f.Path)); {
		case err == nil:
			taken = append(taken, f.Path)
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("cannot write the plugin to %s: %w", dir, err)
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("cannot write the plugin to %s: there are already %s; name another directory, or move them away",
			dir, strings.Join(taken, ", "))
	}
	made, err := makeDirs(dir)
	defer func() {
		if err != nil {
			for _, path := range slices.Backward(made) { // the newest first
				_ = os.Remove(path)
			}
			err = fmt.Errorf("cannot write the plugin to %s: %w", dir, err)
		}
	}()
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Path)
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		made = append(made, path)
		_, err = file.Write(f.data)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// makeDirs makes a directory and those above it, and returns which it has made, the outermost first.
func makeDirs(dir string) (made []string, err error) {
	for above := dir; ; above = filepath.Dir(above) {
		if _, err := os.Lstat(above); !errors.Is(err, fs.ErrNotExist) {
			break // if it is no directory, what follows says so
		}
		made = append(made, above)
	}
	slices.Reverse(made)
	return made, os.MkdirAll(dir, 0o755)
}
