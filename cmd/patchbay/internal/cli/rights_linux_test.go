package cli_test

import (
	"os/exec"
	"syscall"
)

// dropRights makes a copy of this program run as nobody. The files of the test lie where nobody else can reach them: hence the link to the
// program, and the directory.
func dropRights(cmd *exec.Cmd) {
	cmd.Path = "/proc/self/exe"
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}
