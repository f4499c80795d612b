//go:build !linux

package dirwatch

import (
	"errors"
	"os"
)

type mounts struct{ changed chan struct{} }

func openMounts() (*mounts, error) { return nil, errors.ErrUnsupported }

func fileSystemAt(string) string { return "" }

func (*mounts) close() {}

func hasAllEvents(*os.File) bool { return false }
