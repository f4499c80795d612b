//go:build !linux

package process

import "os"

// MayChangeUser says whether processes can be started as other users, and ended, which only root can.
func MayChangeUser() bool { return os.Geteuid() == 0 }
