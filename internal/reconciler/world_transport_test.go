package reconciler_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

var errRefused = errors.New("connection refused")

type transport struct{ w *world }

func (t transport) reach(path string) (*fakePlugin, error) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	p := t.w.plugins[path]
	switch {
	case p == nil:
		return nil, fs.ErrNotExist
	case p.dead:
		return nil, errRefused
	}
	return p, nil
}

// isOther says that a socket is that of another plugin than p.
func (w *world) isOther(p *fakePlugin, socket plugin.SocketID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	owner := w.owners[socket]
	return owner != nil && owner != p && p.socket != socket
}

// did counts one piece of work. w.mu is held.
func (w *world) did(what string) { w.work[what]++ }

func (t transport) Dial(ctx context.Context, timeout time.Duration, path string, socket plugin.SocketID) (reconciler.Conn, error) {
	t.w.mu.Lock()
	t.w.did("dial")
	t.w.mu.Unlock()
	if t.w.connecting != nil {
		began := time.Now()
		t.w.connecting()
		t.w.mu.Lock()
		t.w.connects.Add(time.Since(began))
		t.w.mu.Unlock()
	}
	p, err := t.reach(path)
	if err != nil {
		return nil, err
	}
	if t.w.isOther(p, socket) {
		return nil, errors.New("another socket is there")
	}
	if p.backlogFull {
		return nil, t.w.wait(ctx, timeout, time.Hour)
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	if p.dialErr != nil {
		return nil, p.dialErr
	}
	return &conn{t.w, p}, nil
}

func (t transport) Latencies() (connecting, answering time.Duration) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	return time.Duration(t.w.connects), time.Duration(t.w.answers)
}

func (t transport) Probe(_ context.Context, path string, _ plugin.SocketID, hint func()) (func(), error) {
	t.w.mu.Lock()
	t.w.did("probe")
	t.w.mu.Unlock()
	p, err := t.reach(path)
	if err != nil {
		return nil, err
	}
	if p.probed != nil {
		return p.probed(hint), nil
	}
	stop, err := (&conn{t.w, p}).Watch(hint)
	if err != nil {
		return nil, nil //nolint:nilerr // It lives; it cannot be watched.
	}
	return stop, nil
}

func (t transport) Refused(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, fs.ErrNotExist)
}

func (t transport) WatchProcess(peer plugin.Peer, hint func()) (func(), error) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	p := t.w.processes[peer]
	if p == nil || p.dead {
		return nil, io.EOF
	}
	p.exits = append(p.exits, hint)
	return func() {}, nil
}

func (t transport) Listens(socket plugin.SocketID, _ plugin.Peer) bool {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	p := t.w.owners[socket]
	return p != nil && !p.dead
}

func (transport) Source(string) plugin.Source { return plugin.SourceDiscovered }

func (t transport) Withdrawn(string) error { return t.w.withdrawn }

type conn struct {
	w *world
	p *fakePlugin
}

func (c *conn) GetInfo(ctx context.Context, timeout time.Duration) (plugin.Info, error) {
	c.w.mu.Lock()
	c.w.did("ask")
	takes := c.p.infoTakes
	if c.p.hangs {
		takes = time.Hour
	}
	c.w.mu.Unlock()
	if err := c.w.wait(ctx, timeout, takes); err != nil {
		return plugin.Info{}, err
	}
	if c.w.answering != nil {
		began := time.Now()
		c.w.answering()
		c.w.mu.Lock()
		c.w.answers.Add(time.Since(began))
		c.w.mu.Unlock()
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	switch {
	case c.p.dead:
		return plugin.Info{}, io.EOF
	case c.p.infoErr != nil:
		return c.p.info, c.p.infoErr
	}
	c.p.said = c.p.info
	if c.p.onSaid != nil {
		c.p.onSaid(c.p.said)
	}
	return c.p.said, nil
}

// wait has time pass, if it is to.
func (*world) wait(ctx context.Context, timeout, d time.Duration) error {
	if d == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *conn) Notify(ctx context.Context, timeout time.Duration, registered bool, reason string) error {
	c.w.mu.Lock()
	c.w.did("notify")
	dead, takes := c.p.dead, c.p.notifyTakes
	if !registered {
		takes = c.p.refusalTakes
	}
	c.w.mu.Unlock()
	if dead {
		return io.EOF
	}
	c.w.note("told %s %t%s", c.p.info.Name, registered, map[bool]string{true: "", false: ": " + reason}[reason == ""])
	if err := c.w.wait(ctx, timeout, takes); err != nil {
		return err
	}
	c.w.mu.Lock()
	if registered && c.p.notifyErr != nil {
		defer c.w.mu.Unlock()
		return c.p.notifyErr
	}
	c.p.told = registered
	if c.p.onTold != nil {
		c.p.onTold(registered, reason)
	}
	exits := !registered && c.p.exitsWhenRefused
	c.w.mu.Unlock()
	if exits {
		c.w.kill(c.p)
		return io.EOF
	}
	return nil
}

func (c *conn) Peer() plugin.Peer {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.p.peer
}

func (c *conn) Account() plugin.Account {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.p.account
}

func (c *conn) Watch(exited func()) (func(), error) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.p.hidden || c.p.dead {
		return nil, io.EOF
	}
	c.p.watchers = append(c.p.watchers, exited)
	return func() {}, nil
}

func (c *conn) Close() error { return nil }
