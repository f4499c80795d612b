package launched

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
)

const (
	// maxQueued bounds in bytes what waits to be sent, maxBatch one message, which stays below the 4 MB that a gRPC server takes by default.
	maxQueued = 4 << 20
	maxBatch  = 1 << 20
	// flushTimeout bounds how long the end of a plugin waits for the host to take the last records.
	flushTimeout = time.Second
)

// logQueue holds log records on their way to the host. Adding never blocks: what is too much is dropped and counted.
type logQueue struct {
	fallback slog.Handler // for what the host cannot be given
	wake     chan struct{}
	ended    chan struct{} // closed by finish

	mu      sync.Mutex
	records []*pluginv1.LogRecord
	bytes   int
	dropped int
	closed  bool // nobody sends any more
}

func newLogQueue(stderr io.Writer) *logQueue {
	return &logQueue{
		fallback: slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: slog.Level(-1 << 31)}),
		wake:     make(chan struct{}, 1),
		ended:    make(chan struct{}),
	}
}

// add takes a record for the host. When nobody sends any more it goes to standard error.
func (q *logQueue) add(record *pluginv1.LogRecord) error {
	size := proto.Size(record)
	q.mu.Lock()
	switch {
	case q.closed:
		q.mu.Unlock()
		return q.toStderr(record)
	case q.bytes+size > maxQueued:
		q.dropped++
		q.mu.Unlock()
		return nil
	}
	q.records = append(q.records, record)
	q.bytes += size
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return nil
}

// finish has send return when all that was added is sent.
func (q *logQueue) finish() { close(q.ended) }

// send gives the host all records until finish, or until ctx ends, when the rest goes to standard error.
func (q *logQueue) send(ctx context.Context, dial func() (*grpc.ClientConn, error)) {
	stream := logStream{dial: dial, lost: q.allToStderr}
	for last := false; !last; {
		select {
		case <-q.wake:
		case <-q.ended:
			last = true
		}
		for batch := q.take(); len(batch) > 0; batch = q.take() {
			if err := stream.send(ctx, batch); err != nil {
				q.allToStderr(batch)
			}
		}
	}
	stream.close()
	q.mu.Lock()
	q.closed = true
	rest := q.records
	q.records = nil
	q.mu.Unlock()
	q.allToStderr(rest) // added since the last take
}

// take returns the next batch, and last a record of how many were dropped.
func (q *logQueue) take() []*pluginv1.LogRecord {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < len(q.records) {
		more := proto.Size(q.records[n])
		if n > 0 && size+more > maxBatch {
			break
		}
		size += more
		n++
	}
	batch := slices.Clip(q.records[:n])
	q.records = q.records[n:]
	q.bytes -= size
	if len(q.records) > 0 {
		return batch
	}
	q.records = nil // and not the rest of what holds those that were taken
	if q.dropped > 0 {
		batch = append(batch, &pluginv1.LogRecord{
			Time: timestamppb.Now(), Level: int32(slog.LevelWarn),
			Message: fmt.Sprintf("%d log records were dropped because the host did not take them in time", q.dropped),
		})
		q.dropped = 0
	}
	return batch
}

func (q *logQueue) allToStderr(batch []*pluginv1.LogRecord) {
	for _, record := range batch {
		_ = q.toStderr(record) // there is no one to tell
	}
}

func (q *logQueue) toStderr(record *pluginv1.LogRecord) error {
	return q.fallback.Handle(context.Background(), ToSlog(record))
}

// logStream is the host's Log call, made when it is needed and again when it broke.
type logStream struct {
	dial func() (*grpc.ClientConn, error)
	// lost takes what was sent last on a stream that broke. The host may have it or not: twice is better than never.
	lost func([]*pluginv1.LogRecord)

	stream grpc.ClientStreamingClient[pluginv1.LogRequest, pluginv1.LogResponse]
	last   []*pluginv1.LogRecord
}

// send sends one batch. A stream that broke earlier shows it only now, so one more is tried.
func (s *logStream) send(ctx context.Context, batch []*pluginv1.LogRecord) error {
	if s.stream != nil {
		if s.stream.Send(&pluginv1.LogRequest{Records: batch}) == nil {
			s.last = batch
			return nil
		}
		s.close()
	}
	conn, err := s.dial()
	if err != nil {
		return err
	}
	stream, err := pluginv1.NewHostClient(conn).Log(ctx)
	if err != nil {
		return err
	}
	s.stream, s.last = stream, nil
	if err := stream.Send(&pluginv1.LogRequest{Records: batch}); err != nil {
		s.close()
		return err
	}
	s.last = batch
	return nil
}

// close ends the stream, if there is one, and waits until the host has read all of it.
func (s *logStream) close() {
	if s.stream == nil {
		return
	}
	if _, err := s.stream.CloseAndRecv(); err != nil {
		s.lost(s.last)
	}
	s.stream, s.last = nil, nil
}
