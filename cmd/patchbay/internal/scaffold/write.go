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

// Write writes the files into dir, which it creates if necessary. If any of the files exists, it writes nothing and returns an error that
// names them. After any other error it removes the files and directories that it has created.
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
		return fmt.Errorf("cannot write the plugin to %s: %s already exist; name another directory, or move them away",
			dir, strings.Join(taken, ", "))
	}
	created, err := makeDirs(dir)
	defer func() {
		if err != nil {
			for _, path := range slices.Backward(created) {
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
		created = append(created, path)
		_, err = file.Write(f.data)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// makeDirs creates a directory and its parents. It returns the directories that it creates, outermost first.
func makeDirs(dir string) (created []string, err error) {
	for parent := dir; ; parent = filepath.Dir(parent) {
		if _, err := os.Lstat(parent); !errors.Is(err, fs.ErrNotExist) {
			break // MkdirAll returns an error if parent is not a directory
		}
		created = append(created, parent)
	}
	slices.Reverse(created)
	return created, os.MkdirAll(dir, 0o755)
}
