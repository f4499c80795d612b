package admission

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
)

const (
	// maxQueued is how many checks wait to be run before no more are read from the host, which then keeps them.
	maxQueued = 16 << 10
	// maxAnswers and maxAnswerBytes bound one message, but for its last answer: it stays below the 4 MB that a gRPC server takes by default.
	maxAnswers     = 4096
	maxAnswerBytes = 1 << 20
)

// pool runs checks on a bounded number of goroutines, one check at a time, so that a slow check delays no other. It sends the answers that
// come while a message is being sent in the next message. Its goroutines end with its ctx.
type pool struct {
	check   Check
	limit   int
	all     sync.WaitGroup
	waiting chan *pluginv1.Admission
	answers chan *pluginv1.Resolution
	workers int // who adds counts them
}

func newPool(ctx context.Context, check Check, limit int, send func(*pluginv1.AdmitRequest) error) *pool {
	p := &pool{
		check: check, limit: limit,
		waiting: make(chan *pluginv1.Admission, maxQueued), answers: make(chan *pluginv1.Resolution, maxAnswers),
	}
	p.all.Go(func() { p.sendAll(ctx, send) })
	return p
}

func (p *pool) wait() { p.all.Wait() }

// add queues checks. It blocks while the queue is full, until ctx ends. It is called by one goroutine at a time.
func (p *pool) add(ctx context.Context, batch []*pluginv1.Admission) error {
	for _, admission := range batch {
		// Those that run may all be busy with a check, and for long.
		if p.workers < p.limit {
			p.workers++
			p.all.Go(func() { p.work(ctx) })
		}
		select {
		case p.waiting <- admission:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (p *pool) work(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case admission := <-p.waiting:
			answer := resolve(ctx, p.check, admission)
			select {
			case p.answers <- answer:
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
	}
}

// sendAll sends answers until ctx ends or sending fails. The reason of a failure is the error of the stream's Recv.
func (p *pool) sendAll(ctx context.Context, send func(*pluginv1.AdmitRequest) error) {
	for {
		select {
		case first := <-p.answers:
			if err := send(&pluginv1.AdmitRequest{Resolutions: p.message(first)}); err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// message returns an answer and the queued ones, as many as fit into one message.
func (p *pool) message(first *pluginv1.Resolution) []*pluginv1.Resolution {
	batch, size := []*pluginv1.Resolution{first}, proto.Size(first)
	for len(batch) < maxAnswers && size < maxAnswerBytes {
		select {
		case next := <-p.answers:
			batch = append(batch, next)
			size += proto.Size(next)
		default:
			return batch
		}
	}
	return batch
}
