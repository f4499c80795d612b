//go:build !unix

package systemd

// closeOnExec does nothing: there is no systemd here.
func closeOnExec(int) {}
