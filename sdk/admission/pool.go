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
	// maxAnswers and maxAnswerBytes bound one message, which stays below the 4 MB that a gRPC server takes by default.
	maxAnswers     = 4096
	maxAnswerBytes = 1 << 20
)

// pool runs checks on a bounded number of goroutines, which take one check at a time, so that a slow one holds up no other, and sends
// answers together: those that come while a message is being sent are the next one.
type pool struct {
	check   Check
	limit   int
	send    func(*pluginv1.AdmitRequest) error
	all     sync.WaitGroup
	waiting chan *pluginv1.Admission
	workers int // who adds counts them

	mu      sync.Mutex
	answers []*pluginv1.Resolution
	sending bool
	failed  bool // nobody can be told answers any more
}

func newPool(check Check, limit int, send func(*pluginv1.AdmitRequest) error) *pool {
	return &pool{check: check, limit: limit, send: send, waiting: make(chan *pluginv1.Admission, maxQueued)}
}

// wait waits until all goroutines of the pool have ended, which they do after the ctx of add.
func (p *pool) wait() { p.all.Wait() }

// add has checks run. It blocks while too many wait, until ctx ends. One goroutine calls it.
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
			p.answer(resolve(ctx, p.check, admission))
		case <-ctx.Done():
		}
	}
}

// answer sends an answer, or leaves it to the goroutine that is sending.
func (p *pool) answer(r *pluginv1.Resolution) {
	p.mu.Lock()
	if p.failed {
		p.mu.Unlock()
		return
	}
	p.answers = append(p.answers, r)
	if p.sending {
		p.mu.Unlock()
		return
	}
	p.sending = true
	p.mu.Unlock()
	p.all.Go(p.sendAll)
}

// sendAll sends answers until there are none.
func (p *pool) sendAll() {
	for {
		p.mu.Lock()
		if len(p.answers) == 0 || p.failed {
			p.sending, p.answers = false, nil
			p.mu.Unlock()
			return
		}
		batch := p.answers
		p.answers = nil
		p.mu.Unlock()
		for len(batch) > 0 {
			n := fitting(batch)
			if err := p.send(&pluginv1.AdmitRequest{Resolutions: batch[:n]}); err != nil {
				p.mu.Lock()
				p.failed = true // the end of the stream tells why to whoever reads it
				p.mu.Unlock()
				break
			}
			batch = batch[n:]
		}
	}
}

// fitting returns how many of the answers fit into one message; at least one does.
func fitting(batch []*pluginv1.Resolution) int {
	size := 0
	for i, r := range batch {
		size += proto.Size(r)
		if i == maxAnswers || i > 0 && size > maxAnswerBytes {
			return i
		}
	}
	return len(batch)
}
