//go:build !linux && !darwin

package sock

import "os"

// Stat describes what is at path without following a symbolic link in its last element. It works for every kind of file; ask
// [Info.IsSocket]. An error is an [*fs.PathError]. On this system the ID is made of the modification time alone.
func Stat(path string) (Info, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	return Info{Mode: fi.Mode(), ID: ID{Birth: fi.ModTime().UnixNano()}}, nil
}
