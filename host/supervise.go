package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/patchbay-dev/patchbay/internal/launch/process"
)

const (
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// supervise starts the goroutine of an admission plugin. It is false if the host is closed.
func (h *Host) supervise(p *AdmissionPlugin, running chan struct{}) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	if h.admissions == nil {
		h.admissions = map[*AdmissionPlugin]struct{}{}
	}
	h.admissions[p] = struct{}{}
	h.watching.Go(func() {
		defer close(running)
		p.run()
	})
	return true
}

// unsupervise takes out an admission plugin whose goroutine ends.
func (h *Host) unsupervise(p *AdmissionPlugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.admissions, p)
}

// run starts the plugin as long as checks wait for one.
func (p *AdmissionPlugin) run() {
	for {
		pause, ok := p.next()
		if !ok {
			return
		}
		if pause > 0 {
			timer := time.NewTimer(pause)
			p.await(nil, nil, timer.C)
			timer.Stop()
			continue // the checks may have timed out meanwhile
		}
		p.runOnce()
	}
}

// next says how long to wait before the plugin is started, or that it need not be started now and that run ends.
func (p *AdmissionPlugin) next() (pause time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.waiting.n == 0 {
		p.running = nil
		p.disarm()
		p.host.unsupervise(p)
		return 0, false
	}
	return max(0, time.Until(p.notBefore)), true
}

// disarm forgets the timer of run.
func (p *AdmissionPlugin) disarm() {
	p.armed = false
	select {
	case <-p.nudge:
	default:
	}
}

// runOnce runs the plugin until it ends or has to be ended.
func (p *AdmissionPlugin) runOnce() {
	s := newSession(p)
	ctx := context.Background()
	if p.logger != nil {
		ctx = WithLogger(ctx, p.logger)
	}
	p.begin(s)
	proc, err := p.host.Launch(ctx, Spec{Args: p.args, Protocol: p.protocol, Controller: &Controller{Admissions: s}})
	if err == nil {
		hangs := p.await(proc.Done(), s.over, nil)
		err = p.end(proc, hangs)
	}
	p.finish(s, fmt.Errorf("%w: %w", ErrCrashed, err))
	s.receiving.Wait()
}

// begin lets the plugin open its stream.
func (p *AdmissionPlugin) begin(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = s
}

// end terminates a plugin, if it has not ended, and waits for its end. Meanwhile checks may time out.
func (p *AdmissionPlugin) end(proc *PluginProcess, hangs bool) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if hangs {
		cancel() // it would not hear that it is asked to end, and checks wait for the next one
	}
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = proc.Terminate(ctx)
	}()
	p.await(ended, nil, nil)
	select {
	case <-ended:
	case <-p.kill:
		cancel()
		<-ended
	}
	if errors.Is(err, process.ErrTimeout) {
		proc.abandon()
	}
	return err
}

// finish refuses the checks that the plugin has not answered. Those that it was not asked wait for the next one, unless this one
// has not even said hello. If it hung all of them wait: what made it hang has timed out.
func (p *AdmissionPlugin) finish(s *session, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = nil
	if s.hangs {
		for p.waiting.n > 0 {
			p.waiting.moveFirst(&p.sent)
		}
		p.waiting, p.sent = p.sent, promises{}
	} else {
		p.failAll(&p.sent, cmp.Or(s.err, err))
		if !s.greeted {
			p.failAll(&p.waiting, cmp.Or(s.err, err))
		}
	}
	if time.Since(s.start) >= maxPause {
		p.failures = 0
		return
	}
	pause := min(minPause<<min(p.failures, 10), maxPause)
	p.failures++
	// Plugins that failed together do not start together.
	p.notBefore = time.Now().Add(pause*3/4 + rand.N(pause/2))
}

// await waits until one of the channels says so, or until Close is called. Meanwhile checks time out. It also returns when the
// plugin hangs.
func (p *AdmissionPlugin) await(a, b <-chan struct{}, c <-chan time.Time) (hangs bool) {
	for {
		var expiry <-chan time.Time
		deadline, hangs := p.expire(time.Now())
		if hangs && b != nil {
			return true
		}
		var timer *time.Timer
		if !deadline.IsZero() {
			timer = time.NewTimer(time.Until(deadline))
			expiry = timer.C
		}
		again := false
		select {
		case <-a:
		case <-b:
		case <-c:
		case <-p.aborted:
		case <-p.nudge:
			again = true
		case <-expiry:
			again = true
		}
		if timer != nil {
			timer.Stop()
		}
		if !again {
			return false
		}
	}
}

// expire refuses the checks whose time is over, and returns the next deadline; zero if there is none. The plugin hangs if a check
// timed out and no other was answered for half of that time.
func (p *AdmissionPlugin) expire(now time.Time) (deadline time.Time, hangs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range []*promises{&p.sent, &p.waiting} {
		for list.n > 0 && !list.first.deadline.After(now) {
			if p.session != nil && now.Sub(p.session.heard) >= p.timeout/2 {
				p.session.hangs, hangs = true, true
			}
			p.fail(list, list.first, ErrTimeout)
		}
		if list.n > 0 && (deadline.IsZero() || list.first.deadline.Before(deadline)) {
			deadline = list.first.deadline
		}
	}
	p.armed = !deadline.IsZero()
	if !p.armed {
		p.disarm()
	}
	return deadline, hangs
}
