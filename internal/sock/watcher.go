package sock

import (
	"context"
	"errors"
)

// ErrNotVisible is returned by [Watcher.WatchProcess] if the process behind a connection cannot be watched, because it is in another PID
// namespace or has ended. The caller can use [Probe] instead.
var ErrNotVisible = errors.New("the process behind the socket cannot be watched")

// ProbeWatch checks that a process accepts on the socket at path, as [Probe] does, and watches that process, as [Watcher.WatchProcess]
// does. An error of the connect can be classified with [IsRefused], [IsGone] and [IsBusy]. An error that wraps [ErrNotVisible] means that a
// process accepts but cannot be watched.
func (w *Watcher) ProbeWatch(ctx context.Context, path string, fn func()) (stop func(), err error) {
	conn, err := Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	stop, err = w.WatchProcess(conn, fn)
	_ = conn.Close()
	return stop, err
}
