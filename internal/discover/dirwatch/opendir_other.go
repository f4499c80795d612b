//go:build !unix

package dirwatch

import "os"

func openDir(path string, _ bool) (*os.File, error) { return os.Open(path) }
