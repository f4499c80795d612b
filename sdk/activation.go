package sdk

import (
	"errors"
	"fmt"
	"net"

	"github.com/patchbay-dev/patchbay/internal/systemd"
)

// activated reports whether systemd passed sockets to this process.
func activated() bool { return len(systemd.Inherited().Names()) > 0 }

// inherited returns the socket that systemd passed for the plugin: the one of that name (FileDescriptorName=), or the only one.
func inherited(name string) (net.Listener, error) {
	l, err := systemd.Inherited().TakeOnly(name)
	if err != nil {
		return nil, err
	}
	if _, ok := l.(*net.UnixListener); !ok {
		return nil, errors.Join(fmt.Errorf("systemd passed a socket of %s %s, want a Unix one: use ListenStream= with a path",
			l.Addr().Network(), l.Addr()), l.Close())
	}
	return l, nil
}
