package launcher

import (
	"fmt"
	"path/filepath"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// manyLives is a number of lives that no plugin has during one run of its host.
const manyLives = 999_999

// CheckSocket says whether a plugin can serve in a plugin directory: the path of a socket must not be too long for those who connect.
func (p Plugin) CheckSocket(dir string) error {
	if !p.Serve {
		return nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if path, _ := socketPath(dir, p.Name, manyLives, p.needsRoom()); len(path) > sock.MaxPath {
		return fmt.Errorf("its sockets in plugin directory %s have paths of up to %d bytes, such as %s, and the path of a socket may have %d: "+
			"choose a shorter name or plugin directory", dir, len(path), path, sock.MaxPath)
	}
	if checker, ok := p.Protocol.(interface{ CheckDir(dir string) error }); ok {
		return checker.CheckDir(dir)
	}
	return nil
}

// needsRoom says whether a plugin that serves needs a directory in which to make its socket: one that runs as somebody else does. For one
// of a foreign protocol the host makes it.
func (p Plugin) needsRoom() bool { return p.User+p.Group != "" && p.Protocol == nil }

// socketPath returns where a life of a plugin serves, and the directory that it has for that; empty if it needs none.
func socketPath(dir, name string, life int, needsRoom bool) (path, room string) {
	path = filepath.Join(dir, fmt.Sprintf("%s.%d", name, life))
	if needsRoom {
		return filepath.Join(path, "plugin.sock"), path
	}
	return path + ".sock", ""
}
