package sock

import "errors"

// ErrInUse is wrapped by the error of [Listen] if another process owns the socket.
var ErrInUse = errors.New("another process is listening")
