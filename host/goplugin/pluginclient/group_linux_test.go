package pluginclient_test

import (
	"os"
	"syscall"
	"testing"

	library "github.com/hashicorp/go-plugin"
)

// TestSocketGroup: the members of a group can come to the plugin's socket.
func TestSocketGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a socket to a group that it is not of")
	}
	c := config("serve")
	c.UnixSocketConfig = &library.UnixSocketConfig{Group: "23456"}
	client := newClient(t, c)
	dispense(t, client)
	address, err := client.Start()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(address.String())
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Gid != 23456 || info.Mode().Perm()&0o060 != 0o060 {
		t.Errorf("the socket is of group %d with mode %v", st.Gid, info.Mode())
	}
}
