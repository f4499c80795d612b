//go:build !linux

package pluginlog

import "os"

// growPipe does nothing: the size of a pipe's buffer cannot be set here.
func growPipe(*os.File) {}
