//go:build !unix || netbsd

package systemd

// There is no systemd here.

func closeOnExec(int) {}

func monotonic() string { return "" }
