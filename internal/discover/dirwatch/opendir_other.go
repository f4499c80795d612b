//go:build !unix

package dirwatch

import "os"

func openDir(path string, _ bool, _ uint64) (*os.File, error) { return os.Open(path) }
