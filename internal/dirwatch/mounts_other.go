//go:build !linux

package dirwatch

import "errors"

type mounts struct{ changed chan struct{} }

func openMounts() (*mounts, error) { return nil, errors.ErrUnsupported }

func (*mounts) close() {}
