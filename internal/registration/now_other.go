//go:build !unix

package registration

import (
	"errors"
	"syscall"
)

func readNow(syscall.RawConn, []byte) (int, error) { return 0, errors.ErrUnsupported }

func writeNow(syscall.RawConn, []byte) (int, error) { return 0, errors.ErrUnsupported }
