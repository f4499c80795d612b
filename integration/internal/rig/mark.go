package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// MarkSize is the size of a mark.
const MarkSize = 16

// CopyMarked copies a program and appends a mark, of at most [MarkSize] bytes: another program that does the same. It takes the place of
// a file at the path in one step.
func CopyMarked(from, path, mark string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if len(mark) > MarkSize {
		return fmt.Errorf("the mark %q is longer than %d bytes", mark, MarkSize)
	}
	fresh := path + ".new"
	padded := append([]byte(mark), make([]byte, MarkSize-len(mark))...)
	return errors.Join(os.WriteFile(fresh, append(text, padded...), 0o755), os.Rename(fresh, path))
}

// Mark returns the mark of a program.
func Mark(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.Seek(-MarkSize, io.SeekEnd); err != nil {
		return "", err
	}
	mark, err := io.ReadAll(f)
	return string(bytes.TrimRight(mark, "\x00")), err
}
