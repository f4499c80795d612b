package launched

import (
	"os"
	"sync"

	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
)

// process is the session of this process. The first call reads the handshake, if the environment says that there is one, and takes that out
// of the environment, so that no descendant looks for a handshake of its own. With an error the session is one without a host.
var process = sync.OnceValues(func() (*Session, error) {
	alone := Alone(os.Stderr)
	if os.Getenv(handshake.Env) != handshake.EnvValue {
		return alone, nil
	}
	if err := os.Unsetenv(handshake.Env); err != nil {
		return alone, err
	}
	stdin, err := openStdin()
	if err != nil {
		return alone, err
	}
	shake, err := handshake.Read(stdin)
	if err != nil {
		_ = stdin.Close()
		return alone, err
	}
	return New(shake, stdin, os.Stderr), nil
})
