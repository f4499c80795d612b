// Package stablesocket serves, for each plugin, a socket whose path depends only on the plugin's type and name. It is for consumers that
// are not written in Go. Each call on it is forwarded to the instance that is current when the call begins.
package stablesocket

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

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	dirMode = 0o750
	mode    = 0o660
	// goneGrace is how long the socket of a plugin stays after the plugin has disappeared. Calls then fail immediately, and the client can
	// try again when it likes. Without the socket, a client could not connect, and gRPC's back-off would delay it by up to two minutes.
	goneGrace = 30 * time.Second
	// maxGone bounds the sockets of plugins that have disappeared, so that short-lived names do not use up descriptors.
	maxGone = 256
	// retryInterval is the time between attempts to create a socket.
	retryInterval = 5 * time.Second
)

// Sockets keeps a stable socket for each plugin and role in a registry. Set the exported fields, then call Init, then Run. Methods other
// than Condition are not safe for concurrent use.
type Sockets struct {
	// Dir is the directory of the sockets.
	Dir string
	// Registry has the plugins of this node.
	Registry *dynamicplugins.Store
	// Calls connects to the plugins of this node: the registry, or the part of it that may be called.
	Calls proxy.Connector
	// InFleet connects to plugins that have a socket whether or not they are on this node.
	InFleet map[plugin.Name]proxy.Connector
	// Conns bounds the connections at all sockets together, and Budget their calls; nil for the default.
	Conns  *limits.Connections
	Budget *h2proxy.Budget
	Log    *slog.Logger

	grace time.Duration // goneGrace
	retry time.Duration // retryInterval

	// lifetime is the context of all calls; stop cancels it.
	lifetime context.Context //nolint:containedctx // All calls share it.
	stop     context.CancelCauseFunc
	// serving counts the servers, including those of removed sockets.
	serving sync.WaitGroup

	// sockets and due belong to the goroutine of Run.
	sockets map[plugin.Name]*socket
	// due is when to remove the socket of a plugin that is gone, or to retry creating a socket.
	due map[plugin.Name]time.Time

	mu     sync.Mutex
	failed map[plugin.Name]error // the plugins without a socket, and the reason
	since  time.Time             // when the first of failed failed
}

type socket struct {
	listener *sock.Placed
	server   *proxy.Server
}

// Init creates the directory of the sockets, if necessary. It creates no sockets.
func (s *Sockets) Init() error {
	if err := os.MkdirAll(s.Dir, dirMode); err != nil {
		return server.AdviseOnPath(fmt.Errorf("cannot create the directory of the stable sockets: %w", err), "dispense directory")
	}
	s.grace, s.retry = goneGrace, retryInterval
	s.sockets, s.due, s.failed = map[plugin.Name]*socket{}, map[plugin.Name]time.Time{}, map[plugin.Name]error{}
	s.lifetime, s.stop = context.WithCancelCause(context.Background())
	return nil
}

// Run serves the sockets until ctx is done. Then it cancels all calls, removes the sockets, and returns.
func (s *Sockets) Run(ctx context.Context) {
	// Cancels the calls before the registry shuts down, so that they get this error.
	defer context.AfterFunc(ctx, func() { s.stop(server.ErrStopping) })()
	plugins, events := s.Registry.Watch(ctx, "")
	s.followAll(ctx, plugins)
	s.clear(ctx)
	timer := time.NewTimer(s.untilDue())
	defer timer.Stop()
	for open := true; open; timer.Reset(s.untilDue()) {
		var event *dynamicplugins.PluginUpdateEvent
		select {
		case event, open = <-events:
			switch {
			case !open:
			case event.EventType == dynamicplugins.EventTypeResync:
				s.followAll(ctx, event.Plugins)
			default:
				s.follow(ctx, plugin.Name{Type: event.Info.Type, Name: event.Info.Name})
			}
		case now := <-timer.C:
			s.settle(ctx, now)
		}
	}
	s.close()
}

// followAll updates all sockets.
func (s *Sockets) followAll(ctx context.Context, plugins []*dynamicplugins.PluginInfo) {
	for _, p := range plugins {
		s.follow(ctx, plugin.Name{Type: p.Type, Name: p.Name})
	}
	for k := range s.InFleet {
		s.follow(ctx, k)
	}
	for k := range s.sockets {
		s.follow(ctx, k)
	}
	for k := range s.due {
		s.follow(ctx, k)
	}
}

// follow creates the socket of a plugin, or schedules its removal, according to the registry.
func (s *Sockets) follow(ctx context.Context, k plugin.Name) {
	there := s.InFleet[k] != nil || len(s.Registry.Instances(k.Type, k.Name)) > 0
	_, waiting := s.due[k]
	switch entry := s.sockets[k]; {
	case there && entry != nil:
		delete(s.due, k)
	case there:
		s.open(ctx, k)
	case entry == nil:
		delete(s.due, k)
		s.succeeded(k)
	case !waiting:
		s.due[k] = time.Now().Add(s.grace)
		s.limitGone(ctx)
	}
}

func (s *Sockets) settle(ctx context.Context, now time.Time) {
	for k, at := range s.due {
		if at.After(now) {
			continue
		}
		if s.sockets[k] != nil {
			s.remove(ctx, k)
		} else {
			s.follow(ctx, k)
		}
	}
}

// untilDue returns the time until the next socket is due.
func (s *Sockets) untilDue() time.Duration {
	first := time.Now().Add(time.Hour)
	for _, at := range s.due {
		if at.Before(first) {
			first = at
		}
	}
	return time.Until(first)
}

// limitGone removes the oldest of the sockets whose plugins have disappeared, if there are too many.
func (s *Sockets) limitGone(ctx context.Context) {
	var gone []plugin.Name
	for k := range s.due {
		if s.sockets[k] != nil {
			gone = append(gone, k)
		}
	}
	if len(gone) > maxGone {
		s.remove(ctx, slices.MinFunc(gone, func(a, b plugin.Name) int { return s.due[a].Compare(s.due[b]) }))
	}
}

func (s *Sockets) open(ctx context.Context, k plugin.Name) {
	path := socketPath(s.Dir, k)
	err := os.MkdirAll(filepath.Dir(path), dirMode)
	var listener *sock.Placed
	if err == nil {
		listener, err = sock.Place(ctx, path, mode, nil)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.due[k] = time.Now().Add(s.retry)
			s.fail(k, server.AdviseOnPath(err, "dispense directory"))
		}
		return
	}
	delete(s.due, k)
	s.succeeded(k)
	calls := s.Calls
	if elsewhere := s.InFleet[k]; elsewhere != nil {
		calls = elsewhere
	}
	director := proxy.Director(func(ctx context.Context, _ string) (grpc.ClientConnInterface, error) {
		return proxy.ConnTo(ctx, calls, k.Type, k.Name)
	})
	entry := &socket{
		listener: listener,
		server: proxy.NewServer(s.lifetime, director.Forward, proxy.ServerConfig{
			Budget: s.Budget, HeaderTimeout: server.HeaderTimeout, Log: s.Log,
		}),
	}
	s.sockets[k] = entry
	s.serving.Go(func() {
		if err := entry.server.Serve(s.Conns.Bound(listener, "stable", nil)); err != nil {
			s.Log.Error("a stable socket has stopped serving", "plugin", k.String(), "path", path, "error", err)
		}
	})
	s.Log.Debug("a stable socket leads to a plugin", "plugin", k.String(), "path", path)
}

// remove removes the socket of a plugin. Calls in progress continue.
func (s *Sockets) remove(ctx context.Context, k plugin.Name) {
	entry := s.sockets[k]
	delete(s.sockets, k)
	delete(s.due, k)
	s.withdraw(ctx, k, entry)
	s.serving.Go(entry.server.Drain)
	s.Log.Debug("the stable socket of a plugin that is gone was removed", "plugin", k.String())
}

func (s *Sockets) withdraw(ctx context.Context, k plugin.Name, entry *socket) {
	if _, err := entry.listener.Withdraw(ctx); err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot remove the stable socket of a plugin", "plugin", k.String(), "error", err)
	}
}

// close ends all calls and removes all sockets.
func (s *Sockets) close() {
	ctx, cancel := context.WithTimeout(context.Background(), server.StopTimeout)
	defer cancel()
	for k, entry := range s.sockets {
		s.withdraw(ctx, k, entry)
	}
	s.clear(ctx) // Run may not have done it before its context was done
	s.stop(server.ErrStopping)
	for _, entry := range s.sockets {
		s.serving.Go(entry.server.Drain)
	}
	clear(s.sockets)
	s.serving.Wait()
}

// clear removes stale sockets and no other files. It waits up to a second for sockets whose owner has exited to become stale: a process
// that a killed daemon was starting shares the daemon's listeners briefly.
func (s *Sockets) clear(ctx context.Context) {
	for end := time.Now().Add(time.Second); s.clearOnce(ctx) && time.Now().Before(end); {
		if !backoff.Pause(ctx, 10*time.Millisecond) {
			return
		}
	}
}

// clearOnce removes the stale sockets, and reports whether others will become stale because their owners have exited.
func (s *Sockets) clearOnce(ctx context.Context) (again bool) {
	folders, err := os.ReadDir(s.Dir)
	// gofail: var dispenseClear string
	// folders, err = nil, errors.New(dispenseClear)
	if err != nil {
		s.Log.Warn("cannot search the dispense directory for leftover sockets", "error", err)
	}
	for _, folder := range folders {
		files, err := os.ReadDir(filepath.Join(s.Dir, folder.Name()))
		if err != nil {
			continue // not a directory, or not ours
		}
		for _, file := range files {
			name, beside := besideStable(file.Name())
			path := filepath.Join(s.Dir, folder.Name(), name)
			if !isStableName(name) {
				continue
			}
			stale, dying := isStale(ctx, path)
			again = again || dying
			if beside && isFree(path) || stale {
				s.clearPath(ctx, path)
			}
		}
	}
	return again
}

// besideStable returns NAME.sock for a hidden file of package sock, such as .NAME.sock.lock. For any other file it returns the file's name
// and false.
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

// isStale reports whether a file is a socket of this user that refuses connections (stale), or whose owner has exited while another process
// still shares its listener (dying).
func isStale(ctx context.Context, path string) (stale, dying bool) {
	info, err := sock.Stat(path)
	if err != nil || !info.IsSocket() || int(info.UID) != os.Geteuid() {
		return false, false
	}
	_, err = sock.Probe(ctx, path)
	return sock.IsRefused(err), err == nil && !sock.IsServed(path)
}

// clearPath removes a stale socket by replacing it, which checks it again under the lock.
func (s *Sockets) clearPath(ctx context.Context, path string) {
	placed, err := sock.Place(ctx, path, mode, nil)
	if err == nil {
		_, err = placed.Withdraw(ctx)
		err = errors.Join(err, placed.Close())
	}
	if err != nil && !errors.Is(err, sock.ErrInUse) {
		s.Log.Warn("cannot remove a leftover stable socket", "path", path, "error", err)
	}
}

func (s *Sockets) fail(k plugin.Name, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.failed[k]
	if before == nil || before.Error() != err.Error() {
		s.Log.Error("a plugin has no stable socket", "plugin", k.String(), "error", err)
	}
	if len(s.failed) == 0 {
		s.since = time.Now()
	}
	s.failed[k] = err
}

func (s *Sockets) succeeded(k plugin.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.failed, k)
}

// Condition returns the condition "dispense". It is not OK while a plugin has no socket.
func (s *Sockets) Condition() plugin.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, err := range s.failed {
		return plugin.Condition{
			Name: "dispense", Since: s.since,
			Message: fmt.Sprintf("%d plugins have no stable socket, for example %s: %v", len(s.failed), k, err),
		}
	}
	return plugin.Condition{Name: "dispense", OK: true}
}
