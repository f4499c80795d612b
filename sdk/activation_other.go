//go:build !unix

package sdk

// closeOnExec does nothing: there is no systemd here.
func closeOnExec(int) {}
