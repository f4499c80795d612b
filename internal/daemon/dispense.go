package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	stableDirMode = 0o750
	stableMode    = 0o660
	// goneGrace is how long the socket of a plugin that is gone stays, with calls answered that it is gone. A client that is refused a
	// connection waits before it tries again, gRPC's own up to two minutes; one that is answered meets the plugin's return at once.
	goneGrace = 30 * time.Second
	// maxGone is how many sockets of plugins that are gone there are at most, so that names that come and go do not use up descriptors.
	maxGone = 256
	// stableRetry is the time until a socket that could not be made is tried again.
	stableRetry = 5 * time.Second
)

// dispense keeps one stable socket for each plugin and role in the registry, which always leads to the current instance, for consumers
// that are not Go. It follows the registry; calls on the sockets are forwarded by package proxy.
type dispense struct {
	dir      string
	registry *dynamicplugins.Store
	calls    connector
	// inFleet are the plugins that have a socket whether or not they are on this node, and where calls to them go.
	inFleet map[patchbay.PluginName]connector
	grace   time.Duration // goneGrace
	retry   time.Duration // stableRetry
	log     *slog.Logger
	// conns bounds the connections at all sockets together, budget their calls.
	conns  *limits.Connections
	budget *h2proxy.Budget

	// end is what the calls end with.
	end  context.Context //nolint:containedctx // It is that of Run, which all calls share.
	stop context.CancelCauseFunc
	// serving are the servers, also those of sockets that are gone.
	serving sync.WaitGroup

	// sockets and due belong to the goroutine of run.
	sockets map[patchbay.PluginName]*stableSocket
	// due has the sockets of plugins that are gone, with the time at which they go, and those that could not be made, with that of the next
	// try.
	due map[patchbay.PluginName]time.Time

	mu     sync.Mutex
	failed map[patchbay.PluginName]error
	since  time.Time // when the first of failed failed
}

type stableSocket struct {
	listener *sock.Placed
	server   *proxy.Server
}

// newDispense returns what keeps the stable sockets in a directory, which it makes; nil if there is to be none. Calls go to what calls
// gives, which is the registry, or what the fleet has in its place, and those to plugins in the fleet to what inFleet gives.
func newDispense(
	dir string, registry *dynamicplugins.Store, calls connector, inFleet map[patchbay.PluginName]connector, conns *limits.Connections,
	budget *h2proxy.Budget, log *slog.Logger,
) (*dispense, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, stableDirMode); err != nil {
		return nil, server.AdviseOnPath(fmt.Errorf("cannot create the directory of the stable sockets: %w", err), "dispense directory")
	}
	d := &dispense{
		dir: dir, registry: registry, calls: calls, inFleet: inFleet, conns: conns, budget: budget, grace: goneGrace, retry: stableRetry, log: log,
		sockets: map[patchbay.PluginName]*stableSocket{}, due: map[patchbay.PluginName]time.Time{}, failed: map[patchbay.PluginName]error{},
	}
	d.end, d.stop = context.WithCancelCause(context.Background())
	return d, nil
}

// start runs d, unless it is nil. What it returns ends d and returns when nothing is left of it.
func (d *dispense) start(ctx context.Context) (stop func()) {
	if d == nil {
		return func() {}
	}
	return inBackground(ctx, d.run)
}

// run keeps the sockets until ctx ends, then ends all calls, and returns when nothing is left.
func (d *dispense) run(ctx context.Context) {
	// The registry is shut down soon after: by then every call has been told why it ends.
	defer context.AfterFunc(ctx, func() { d.stop(server.ErrStopping) })()
	plugins, events := d.registry.Watch(ctx, "")
	d.followAll(ctx, plugins)
	d.clear(ctx)
	timer := time.NewTimer(d.untilDue())
	defer timer.Stop()
	for open := true; open; timer.Reset(d.untilDue()) {
		var event *dynamicplugins.PluginUpdateEvent
		select {
		case event, open = <-events:
			switch {
			case !open:
			case event.EventType == dynamicplugins.EventTypeResync:
				d.followAll(ctx, event.Plugins)
			default:
				d.follow(ctx, patchbay.PluginName{Type: event.Info.Type, Name: event.Info.Name})
			}
		case now := <-timer.C:
			d.settle(ctx, now)
		}
	}
	d.close()
}

// followAll follows after anything may have changed.
func (d *dispense) followAll(ctx context.Context, plugins []*dynamicplugins.PluginInfo) {
	for _, p := range plugins {
		d.follow(ctx, patchbay.PluginName{Type: p.Type, Name: p.Name})
	}
	for k := range d.inFleet {
		d.follow(ctx, k)
	}
	for k := range d.sockets {
		d.follow(ctx, k)
	}
	for k := range d.due {
		d.follow(ctx, k)
	}
}

// follow brings the socket of a plugin in line with the registry as it is now.
func (d *dispense) follow(ctx context.Context, k patchbay.PluginName) {
	there := d.inFleet[k] != nil || len(d.registry.Instances(k.Type, k.Name)) > 0
	_, waiting := d.due[k]
	switch s := d.sockets[k]; {
	case there && s != nil:
		delete(d.due, k)
	case there:
		d.open(ctx, k)
	case s == nil:
		delete(d.due, k)
		d.succeeded(k)
	case !waiting:
		d.due[k] = time.Now().Add(d.grace)
		d.limitGone(ctx)
	}
}

func (d *dispense) settle(ctx context.Context, now time.Time) {
	for k, at := range d.due {
		if at.After(now) {
			continue
		}
		if d.sockets[k] != nil {
			d.remove(ctx, k)
		} else {
			d.follow(ctx, k)
		}
	}
}

// untilDue returns how long there is nothing to do.
func (d *dispense) untilDue() time.Duration {
	first := time.Now().Add(time.Hour) // and then it looks again
	for _, at := range d.due {
		if at.Before(first) {
			first = at
		}
	}
	return time.Until(first)
}

// limitGone removes the socket of the plugin that went first if there are too many of those that are gone.
func (d *dispense) limitGone(ctx context.Context) {
	var gone []patchbay.PluginName
	for k := range d.due {
		if d.sockets[k] != nil {
			gone = append(gone, k)
		}
	}
	if len(gone) > maxGone {
		d.remove(ctx, slices.MinFunc(gone, func(a, b patchbay.PluginName) int { return d.due[a].Compare(d.due[b]) }))
	}
}

func (d *dispense) open(ctx context.Context, k patchbay.PluginName) {
	path := stablePath(d.dir, k)
	err := os.MkdirAll(filepath.Dir(path), stableDirMode)
	var listener *sock.Placed
	if err == nil {
		listener, err = sock.Place(ctx, path, stableMode, nil)
	}
	if err != nil {
		if ctx.Err() == nil {
			d.due[k] = time.Now().Add(d.retry)
			d.fail(k, server.AdviseOnPath(err, "dispense directory"))
		}
		return
	}
	delete(d.due, k)
	d.succeeded(k)
	calls := d.calls
	if elsewhere := d.inFleet[k]; elsewhere != nil {
		calls = elsewhere
	}
	director := proxy.Director(func(ctx context.Context, _ string) (grpc.ClientConnInterface, error) { return connTo(ctx, calls, k) })
	s := &stableSocket{
		listener: listener,
		server:   proxy.NewServer(d.end, director.Forward, proxy.ServerConfig{Budget: d.budget, HeaderTimeout: server.HeaderTimeout, Log: d.log}),
	}
	d.sockets[k] = s
	d.serving.Go(func() {
		if err := s.server.Serve(d.conns.Bound(listener, "stable", nil)); err != nil {
			d.log.Error("a stable socket is no longer served", "plugin", k.String(), "path", path, "error", err)
		}
	})
	d.log.Debug("a stable socket leads to a plugin", "plugin", k.String(), "path", path)
}

// remove removes the socket of a plugin. Calls in progress go on: only the stop of the daemon cuts them short.
func (d *dispense) remove(ctx context.Context, k patchbay.PluginName) {
	s := d.sockets[k]
	delete(d.sockets, k)
	delete(d.due, k)
	d.withdraw(ctx, k, s)
	d.serving.Go(s.server.Drain)
	d.log.Debug("the stable socket of a plugin that is gone was removed", "plugin", k.String())
}

func (d *dispense) withdraw(ctx context.Context, k patchbay.PluginName, s *stableSocket) {
	if _, err := s.listener.Withdraw(ctx); err != nil && ctx.Err() == nil {
		d.log.Warn("cannot remove the stable socket of a plugin", "plugin", k.String(), "error", err)
	}
}

// close ends all calls, removes all sockets, and returns when nothing is left.
func (d *dispense) close() {
	ctx, cancel := context.WithTimeout(context.Background(), server.StopTimeout)
	defer cancel()
	for k, s := range d.sockets {
		d.withdraw(ctx, k, s)
	}
	d.clear(ctx) // also what a short life had not come to
	d.stop(server.ErrStopping)
	for _, s := range d.sockets {
		d.serving.Go(s.server.Drain)
	}
	clear(d.sockets)
	d.serving.Wait()
}

// clear removes the sockets on which nobody accepts any more. What somebody serves, and what is no such socket, stays. For a socket whose
// owner is dead it waits for at most a second: a process that a killed daemon had just begun to start shares its listeners for a moment.
func (d *dispense) clear(ctx context.Context) {
	for end := time.Now().Add(time.Second); d.clearOnce(ctx) && time.Now().Before(end); {
		if !backoff.Pause(ctx, 10*time.Millisecond) {
			return
		}
	}
}

// clearOnce reports whether there are sockets on which it seems that somebody accepts, but whose owners are dead.
func (d *dispense) clearOnce(ctx context.Context) (again bool) {
	folders, err := os.ReadDir(d.dir)
	// gofail: var dispenseClear string
	// folders, err = nil, errors.New(dispenseClear)
	if err != nil {
		d.log.Warn("cannot search the dispense directory for leftover sockets", "error", err)
	}
	for _, folder := range folders {
		files, err := os.ReadDir(filepath.Join(d.dir, folder.Name()))
		if err != nil {
			continue // not a directory, or not ours
		}
		for _, file := range files {
			name, beside := besideStable(file.Name())
			path := filepath.Join(d.dir, folder.Name(), name)
			if !isStableName(name) {
				continue
			}
			left, dying := isLeft(ctx, path)
			again = again || dying
			if beside && isFree(path) || left {
				d.clearPath(ctx, path)
			}
		}
	}
	return again
}

// besideStable returns for a hidden file that package sock makes beside a socket, as .NAME.sock.lock, the name of the socket, and for
// another file its own.
func besideStable(file string) (name string, beside bool) {
	end := strings.LastIndexByte(file, '.')
	if end < 1 || file[0] != '.' {
		return file, false
	}
	return file[1:end], true
}

func isFree(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// isLeft says whether a file is a socket of this user on which nobody accepts, or on which that is about to be so.
func isLeft(ctx context.Context, path string) (left, dying bool) {
	info, err := sock.Stat(path)
	if err != nil || !info.IsSocket() || int(info.UID) != os.Geteuid() {
		return false, false
	}
	_, err = sock.Probe(ctx, path)
	return sock.IsRefused(err), err == nil && !sock.IsServed(path)
}

// clearPath removes a socket on which nobody accepts by taking its place, which looks again, with the lock.
func (d *dispense) clearPath(ctx context.Context, path string) {
	placed, err := sock.Place(ctx, path, stableMode, nil)
	if err == nil {
		_, err = placed.Withdraw(ctx)
		err = errors.Join(err, placed.Close())
	}
	if err != nil && !errors.Is(err, sock.ErrInUse) {
		d.log.Warn("cannot remove a leftover stable socket", "path", path, "error", err)
	}
}

func (d *dispense) fail(k patchbay.PluginName, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.failed[k]
	if before == nil || before.Error() != err.Error() {
		d.log.Error("a plugin has no stable socket", "plugin", k.String(), "error", err)
	}
	if len(d.failed) == 0 {
		d.since = time.Now()
	}
	d.failed[k] = err
}

func (d *dispense) succeeded(k patchbay.PluginName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.failed, k)
}

// condition says whether every plugin has its socket.
func (d *dispense) condition() patchbay.Condition {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, err := range d.failed {
		return patchbay.Condition{
			Name: "dispense", Since: d.since,
			Message: fmt.Sprintf("%d plugins have no stable socket, for example %s: %v", len(d.failed), k, err),
		}
	}
	return patchbay.Condition{Name: "dispense", OK: true}
}
