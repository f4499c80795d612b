//go:build !linux

package systemd

// monotonic returns nothing: there is no systemd here.
func monotonic() string { return "" }
