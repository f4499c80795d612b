package sock

import "os"

// TempDir returns the directory in which to create a temporary directory for sockets: [os.TempDir], or /tmp if the paths of the sockets would
// be too long. They are longer than the path of the returned directory by room bytes.
func TempDir(room int) string {
	const longest = 103 // that programs of all systems can connect to
	if dir := os.TempDir(); len(dir)+room <= longest {
		return dir
	}
	return "/tmp"
}
