package goplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// dirName is hidden, so that nobody takes what is in it for a plugin that was found.
	dirName = ".go-plugin"
	// socketLength is how much longer than that directory's path the paths of sockets in it are: /plugin-dir and /plugin, each with a
	// number of up to 10 digits.
	socketLength = 38
	// minStale is the age below which a directory may be one in which no socket is yet.
	minStale = startTimeout + time.Minute
)

// CheckDir says whether plugins can serve for a plugin directory: the path of a socket must not be too long.
func (*Plugin) CheckDir(dir string) error { return checkLength(filepath.Join(dir, dirName)) }

func checkLength(dir string) error {
	if tooLong := len(dir) + socketLength - sock.MaxPath; tooLong > 0 {
		return fmt.Errorf("the path of the plugin directory is %d bytes too long for the socket that the plugin makes in %s; "+
			"choose a shorter one", tooLong, dir)
	}
	return nil
}

// privateDir makes the directory in which plugins make their sockets, and removes what is left in it of those whose host was killed.
func privateDir(parent string) (string, error) {
	dir := filepath.Join(parent, dirName)
	if err := checkLength(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot make the directory for its socket: %w", err)
	}
	removeStale(dir, time.Now().Add(-minStale))
	return dir, nil
}

func removeStale(dir string, before time.Time) {
	launches, _ := os.ReadDir(dir) // what cannot be read is not removed
	for _, launch := range launches {
		if info, err := launch.Info(); err != nil || info.ModTime().After(before) {
			continue
		}
		if path := filepath.Join(dir, launch.Name()); !served(path) {
			_ = os.RemoveAll(path) // what cannot be removed is somebody else's
		}
	}
}

// served says whether anybody may accept on a socket in a directory.
func served(dir string) bool {
	sockets, _ := os.ReadDir(dir)
	return slices.ContainsFunc(sockets, func(socket os.DirEntry) bool {
		// The directory may be another user's, whose links are not followed.
		conn, _, err := sock.DialBelow(context.Background(), dir, filepath.Join(dir, socket.Name()))
		if err == nil {
			_ = conn.Close() // nothing was said
		}
		return !sock.IsRefused(err) && !sock.IsGone(err) && !errors.Is(err, syscall.ENOTSOCK)
	})
}
