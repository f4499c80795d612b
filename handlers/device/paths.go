package device

import (
	"fmt"
	"path/filepath"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// manyAnnouncements is the name of a later socket than any handler makes.
const manyAnnouncements = "zzzzzz.sock"

// CheckDirs says whether there can be sockets where a handler with these directories makes some, both of which it needs for plugins that
// register the older way: their paths must not be too long for those who connect.
func CheckDirs(socketDir, pluginDir string) error {
	for _, path := range []string{
		filepath.Join(socketDir, kubeletSocket), filepath.Join(pluginDir, boardDir, manyAnnouncements),
	} {
		path, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		if len(path) > sock.MaxPath {
			return fmt.Errorf("the socket %s has %d bytes, and the path of a socket may have %d: choose a shorter directory", path, len(path),
				sock.MaxPath)
		}
	}
	return nil
}
