package sock

import (
	"context"
	"errors"
)

// ErrNotVisible is returned by [Watcher.WatchProcess] if the process behind a connection cannot be watched: it is hidden by a PID
// namespace, or it has ended already. Whoever needs to know its end has to probe.
var ErrNotVisible = errors.New("the process behind the socket cannot be watched")

// ProbeWatch finds out whether anyone accepts on the socket at path, as [Probe] does, and watches the process that listens there, as
// [Watcher.WatchProcess] does; the connection is closed again. An error that [IsRefused], [IsGone] or [IsBusy] classify is one of the
// connect. One that wraps [ErrNotVisible] means that somebody accepts and cannot be watched.
func (w *Watcher) ProbeWatch(ctx context.Context, path string, fn func()) (stop func(), err error) {
	conn, err := Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	stop, err = w.WatchProcess(conn, fn)
	_ = conn.Close() // says nothing about the socket or the process
	return stop, err
}
