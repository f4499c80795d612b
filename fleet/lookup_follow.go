package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// readsAtOnce is the number of views that are read at a time.
const readsAtOnce = 8

// run follows what is asked for until ctx ends.
func (l *Lookup) run(ctx context.Context) {
	defer close(l.done)
	failures := 0
	for delay := time.Duration(0); backoff.Pause(ctx, delay); {
		progressed, err := attempt(ctx, l.dialer, func() (bool, error) { return l.follow(ctx) })
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errIdle) {
			failures, delay = 0, 0
			select {
			case <-l.changed:
			case <-ctx.Done():
			}
			continue
		}
		if failures++; progressed {
			failures = 1
		}
		delay = retry.After(failures)
		l.lost(err)
	}
}

// follow follows what is asked for until something goes wrong or nothing is asked for. Progressed says that something was read.
func (l *Lookup) follow(ctx context.Context) (progressed bool, err error) {
	if l.restart() == 0 {
		return true, errIdle
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	from, err := l.dialer.dial(ctx, l.config.Timeout)
	if err != nil {
		return false, err
	}
	defer from.close()
	// The stream comes first. Etcd cannot be restored or replaced without ending it, so what is read after it is read from the etcd that is
	// watched.
	timer := time.AfterFunc(l.config.Timeout, func() { cancel(errQuiet) })
	stream, err := from.watch(ctx)
	timer.Stop()
	if err != nil {
		return false, err
	}
	received := make(chan struct{})
	go func() { defer close(received); cancel(l.receive(stream)) }()
	defer func() { cancel(nil); <-received }()
	for {
		read, idle, err := l.readStale(ctx, from, stream)
		switch {
		case context.Cause(ctx) != nil:
			return progressed, context.Cause(ctx)
		case err != nil:
			return progressed, err
		case read > 0:
			progressed = true
			l.found()
			continue
		case idle == 0:
			return true, errIdle
		}
		pause := time.NewTimer(idle)
		select {
		case <-l.changed:
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// restart forgets the watches of the last connection and returns how much there is to follow.
func (l *Lookup) restart() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.watching)
	for _, v := range l.views {
		v.stale, v.watch = true, 0
	}
	return len(l.views)
}

// readStale reads some of what has to be read and begins to watch it. If there is nothing, idle is when something will not have been asked
// for for long; zero if nothing is followed.
func (l *Lookup) readStale(ctx context.Context, from store, stream watchStream) (read int, idle time.Duration, err error) {
	stale, ended, idle := l.stale(time.Now())
	for _, id := range ended {
		err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
		if err != nil {
			return 0, 0, err
		}
	}
	var reading errgroup.Group
	readings := make([]watched, len(stale))
	for i, v := range stale {
		reading.Go(func() (err error) {
			readings[i].view = v
			if readings[i].reading, err = v.source.read(ctx, from); isDenied(err) {
				readings[i].denied, err = err, nil
			}
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return 0, 0, err
	}
	for _, r := range readings {
		if r.denied != nil {
			l.deny(r.view, r.denied)
		} else if err := stream.Send(l.install(r)); err != nil {
			return 0, 0, err
		}
	}
	return len(stale), idle, nil
}

// watched is a view that was read.
type watched struct {
	view *view
	reading
	denied error // why it may not be read
}

// stale lets go of what nobody has asked for for long, unless etcd was away until now: then it may be all that is known. It returns
// some of what has to be read, and the watches that have ended.
func (l *Lookup) stale(now time.Time) (stale []*view, ended []int64, idle time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.views {
		left := viewIdle - now.Sub(v.used)
		if !l.health.Current {
			left = max(left, retry.Max)
		}
		switch {
		case left <= 0 && !v.key.pinned:
			l.drop(v)
			continue
		case v.key.pinned:
			idle = cmp.Or(idle, viewIdle)
		case idle == 0 || left < idle:
			idle = left
		}
		if v.stale && len(stale) < readsAtOnce {
			v.stale = false // a change from here on has it read again
			stale = append(stale, v)
		}
	}
	for id, v := range l.watching {
		if v.watch != id || l.views[v.key] != v {
			ended = append(ended, id)
			delete(l.watching, id)
		}
	}
	return stale, ended, idle
}

// deny tells those who wait for a view why it cannot be read. The next request reads it again.
func (l *Lookup) deny(v *view, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Lists++
	l.settle(v, err)
	if l.views[v.key] == v && !v.key.pinned { // that is read again behind the next connection
		l.drop(v)
	}
}

// install takes over what was read and returns the request that watches what follows.
func (l *Lookup) install(r watched) *pb.WatchRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.install(time.Now())
	tell(r.view.changed)
	l.lastID++
	l.stats.Lists++
	l.stats.Watches++
	r.view.watch = l.lastID
	l.watching[l.lastID] = r.view
	l.settle(r.view, nil)
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(r.key), RangeEnd: []byte(r.end), StartRevision: r.revision + 1, WatchId: l.lastID, ProgressNotify: true, Fragment: true,
	}}}
}

// receive takes over what the watches bring, until something goes wrong.
func (l *Lookup) receive(stream watchStream) error {
	fragments := map[int64][]*mvccpb.Event{}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		id := response.GetWatchId()
		events := slices.Concat(fragments[id], response.GetEvents())
		if delete(fragments, id); response.GetFragment() {
			fragments[id] = events
			continue
		}
		if err := l.take(id, response, events); err != nil {
			return err
		}
	}
}

func (l *Lookup) take(id int64, response *pb.WatchResponse, events []*mvccpb.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.watching[id]
	if id != clientv3.InvalidWatchID && (v == nil || v.watch != id) {
		return nil // it has been let go of, or read again
	}
	if response.GetCompactRevision() > 0 || response.GetCanceled() {
		return errHistory
	}
	l.stats.Events += uint64(len(events))
	now := time.Now()
	again := false
	for _, event := range events {
		again = v.source.take(event, now) || again
	}
	tell(v.changed) // nobody hears of it if that is nil
	if again {
		v.stale = true
		tell(l.changed)
	}
	return nil
}
