//go:build !unix || netbsd

package systemd

// There is no systemd here.

func closeOnExec(int) {}

func listen(int) error { return nil }

func monotonic() string { return "" }
