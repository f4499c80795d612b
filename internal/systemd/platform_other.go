//go:build !unix

package systemd

// There is no systemd here.

func closeOnExec(int) {}

func monotonic() string { return "" }
