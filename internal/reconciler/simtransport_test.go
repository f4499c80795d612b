package reconciler_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// simTransport reaches the programs of a simulation.
type simTransport struct{ l *life }

// still says whether a socket is where it was found, as the real transport does.
func (t simTransport) still(path string, socket plugin.SocketID) error {
	p := t.l.m.files[path]
	if owner := t.l.m.owners[socket]; owner != nil && owner != p {
		owner.missedAt = t.l.m.sim.elapsed
	}
	switch {
	case t.l.m.blind || socket == (plugin.SocketID{}):
		return nil
	case p == nil:
		return fs.ErrNotExist
	case p.socket != socket:
		return fmt.Errorf("another socket is there: %w", cache.ErrRetry)
	}
	return nil
}

// falter lets others do something in between.
func (t simTransport) falter(ctx context.Context) error {
	m := t.l.m
	if m.calm || !m.set.has("jumpy") || !m.sim.chance(3) {
		return nil
	}
	return t.l.pace.Sleep(ctx, time.Duration(m.sim.random.IntN(3))*time.Millisecond)
}

// wait has time pass for a call.
func (l *life) wait(ctx context.Context, timeout, d time.Duration) error {
	ctx, cancel := l.pace.WithTimeout(ctx, timeout)
	defer cancel()
	return l.pace.Sleep(ctx, d)
}

func (simTransport) Latencies() (connecting, answering time.Duration) { return 0, 0 }

func (t simTransport) Dial(ctx context.Context, timeout time.Duration, path string, socket plugin.SocketID) (reconciler.Conn, error) {
	m := t.l.m
	m.did("dial")
	if owner := cmp.Or(m.owners[socket], m.files[path]); owner != nil {
		owner.dials++
	}
	t.l.countSlots(path)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := t.still(path, socket); err != nil {
		return nil, err
	}
	if err := t.falter(ctx); err != nil {
		return nil, err
	}
	p := m.files[path]
	if err := t.falter(ctx); err != nil {
		return nil, err
	}
	if err := t.still(path, socket); err != nil {
		return nil, err
	}
	switch {
	case p == nil:
		return nil, fs.ErrNotExist
	case !m.blind && socket != (plugin.SocketID{}) && p.socket != socket:
		// It left, and was back when that was looked at: to tell that, what is dialled would have to be held open.
		return nil, fmt.Errorf("another socket was there: %w", cache.ErrRetry)
	case p.dead, p.listens > m.sim.elapsed:
		return nil, errRefused
	case p.full:
		return nil, t.l.wait(ctx, timeout, time.Hour)
	}
	if p.distrusted {
		p.barred, p.turnedDown = 0, 0 // it waits for something else now
		return nil, &trust.Refusal{Reason: trust.Listener, Problem: "a stranger listens", Remedy: "name him"}
	}
	t.l.conns++
	p.reachedAt = m.sim.elapsed
	return &simConn{l: t.l, p: p, open: true}, nil
}

// countSlots sees that no more attempts are at work than there are slots. One that waits gives its slot back, the earlier the more of them
// wait: what is silent must hold up nobody.
func (l *life) countSlots(path string) {
	s := l.m.sim
	t := s.current
	if t.dialled != path { // it is at another attempt
		t.dialled, t.dials = path, 0
	}
	if t.dials++; t.dials == 1 {
		t.since = s.elapsed
	}
	const minHold, refusedTries = 2 * time.Millisecond, 16
	busy := 0
	for _, o := range l.pace.running {
		if o.dials > 0 && o.dials <= refusedTries && s.elapsed-o.since < minHold {
			busy++
		}
	}
	if walks := l.m.walks; busy > walks {
		l.m.complain("%d attempts are at work, and there are %d slots", busy, walks)
	}
}

func (t simTransport) Probe(ctx context.Context, path string, socket plugin.SocketID, hint func()) (func(), error) {
	m := t.l.m
	m.did("probe")
	if err := t.falter(ctx); err != nil {
		return nil, err
	}
	p, accepts := m.server(path)
	if path == "/shared" && slices.ContainsFunc(m.programs, func(p *program) bool { return !p.dead && p.endpoints[path] }) {
		return nil, nil
	}
	if err := t.falter(ctx); err != nil {
		return nil, err
	}
	if err := t.still(path, socket); err != nil {
		return nil, err
	}
	switch {
	case p == nil:
		return nil, fs.ErrNotExist
	case !accepts:
		return nil, errRefused
	case !m.blind && socket != (plugin.SocketID{}) && p.socket != socket:
		return nil, fmt.Errorf("another socket was there: %w", cache.ErrRetry) // as for Dial
	case p.full:
		return nil, nil // it lives, and is busy
	}
	p.reachedAt = m.sim.elapsed
	stop, err := m.watch(t.l, p, hint, false)
	if err != nil {
		return nil, nil //nolint:nilerr // It lives; it cannot be watched.
	}
	return stop, nil
}

func (t simTransport) Refused(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, fs.ErrNotExist)
}

func (t simTransport) WatchProcess(peer plugin.Peer, hint func()) (func(), error) {
	for _, p := range t.l.m.programs {
		if p.peer == peer && peer != (plugin.Peer{}) {
			return t.l.m.watch(t.l, p, hint, true)
		}
	}
	return nil, io.EOF
}

func (t simTransport) Listens(socket plugin.SocketID, _ plugin.Peer) bool {
	p := t.l.m.owners[socket]
	return p.strange || !p.dead
}

func (simTransport) Source(path string) plugin.Source {
	if path == "/d/e" {
		return plugin.SourceLaunched
	}
	return plugin.SourceDiscovered
}

func (t simTransport) Withdrawn(path string) error {
	if p := t.l.m.files[path]; p != nil && p.withdrawn {
		return &trust.Refusal{Reason: trust.SocketOwner, Problem: "it is a stranger's", Remedy: "name him"}
	}
	return nil
}

// simConn is a connection to a program.
type simConn struct {
	l    *life
	p    *program
	open bool
}

func (c *simConn) GetInfo(ctx context.Context, timeout time.Duration) (plugin.Info, error) {
	m, p := c.l.m, c.p
	m.did("ask")
	p.asks++
	takes := p.infoTakes
	if p.hangs {
		takes = time.Hour
	}
	if takes > 0 {
		err := c.l.wait(ctx, timeout, takes)
		if c.l == m.life && !c.l.dead && p.goneAt > 0 && m.sim.elapsed-p.goneAt > 10*time.Millisecond {
			m.complain("program %d is still being asked, %v after its socket went", p.number, m.sim.elapsed-p.goneAt)
		}
		if err != nil {
			return plugin.Info{}, err
		}
	}
	switch {
	case p.dead:
		return plugin.Info{}, io.EOF
	case p.infoErr != nil:
		return p.info, p.infoErr
	}
	p.said = p.info
	m.note("program %d says %+v", p.number, p.said)
	m.heard(p)
	return p.said, nil
}

func (c *simConn) Notify(ctx context.Context, timeout time.Duration, registered bool, reason string) error {
	m, p := c.l.m, c.p
	m.did("notify")
	if p.dead {
		return io.EOF
	}
	m.note("program %d is told %t %s", p.number, registered, reason)
	takes := p.notifyTakes
	if !registered {
		takes = p.refusalTakes
	}
	if takes > 0 {
		if err := c.l.wait(ctx, timeout, takes); err != nil {
			path := m.pathOf(p.socket)
			there := path != "" && c.l.told[path] == p.socket && m.sim.elapsed-p.toldLate > 100*time.Millisecond
			if !registered && !c.l.ending && !c.l.dead && !p.dead && there {
				m.complain("program %d is not told to the end that it is refused: %v", p.number, err)
			}
			return err
		}
	}
	switch {
	case c.l.dead:
		return errKilled
	case registered && p.notifyErr != nil:
		return p.notifyErr
	}
	p.told = registered
	m.told(p, registered, reason)
	if !registered && p.exitsWhenRefused {
		m.kill(p)
		return io.EOF
	}
	return nil
}

func (c *simConn) Peer() plugin.Peer { return c.p.peer }

func (c *simConn) Account() plugin.Account { return c.p.account }

func (c *simConn) Watch(exited func()) (func(), error) {
	if err := c.Close(); err != nil {
		return nil, err
	}
	return c.l.m.watch(c.l, c.p, exited, false)
}

func (c *simConn) Close() error {
	if !c.open {
		c.l.m.complain("the connection to program %d is closed twice", c.p.number)
	}
	c.open = false
	c.l.conns--
	return nil
}
