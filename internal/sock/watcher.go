package sock

import "errors"

// ErrNotVisible is returned by [Exits.Watch] if the process behind a connection cannot be watched: it is hidden by a PID namespace, or it
// has ended already. Whoever needs to know its end has to probe.
var ErrNotVisible = errors.New("the process behind the socket cannot be watched")

// ErrClosed is returned by [Exits.Watch] after [Exits.Run] ended.
var ErrClosed = errors.New("no longer watching processes")
