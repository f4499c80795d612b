package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Launch is a plugin that the host itself launched, or is about to launch.
type Launch interface {
	// Owns reports whether a process belongs to the plugin, or serves on its behalf. It blocks until the plugin has been started, or ctx
	// ends.
	Owns(ctx context.Context, pid int) bool
	// ServesAt reports whether the host assigned this socket path to the plugin.
	ServesAt(socketPath string) bool
	// RegisteredFor returns the account of the plugin, if it differs from that of the listening process.
	RegisteredFor() (uid, gid uint32, ok bool)
	// Name returns the name under which the plugin was launched.
	Name() string
	// Introduction returns the answer to GetInfo, encoded, that the plugin sent before it served. It returns nil if there is none, or it
	// was returned before. It does not block.
	Introduction() []byte
}

// gate applies the rules of trust to files and plugins, and remembers refusals. It is a [dirwatch.Judge].
type gate struct {
	trust    *trustjudge.Judge
	launched func(path string) Launch // Watcher.Launched

	// mu guards refused. It is locked while the reconciler's lock is held, so no function is called while mu is held.
	mu      sync.Mutex
	refused []dirwatch.Refusal // sorted by path

	logged untrusted.LogRate[uint32] // by user
}

// Privileged implements [dirwatch.Judge].
func (g *gate) Privileged(uid uint32) bool { return g.trust.Privileged(uid) }

// Admit implements [dirwatch.Judge].
func (g *gate) Admit(path string, info sock.Info) error {
	switch {
	case info.Mode&fs.ModeSymlink != 0:
		return g.trust.Link(path)
	case info.Mode.IsDir():
		owner := info.UID
		if !g.trust.Privileged(owner) && g.launched(path) != nil {
			owner = 0 // the host made it for the plugin
		}
		return g.trust.Directory(path, info.Mode, owner, info.GID)
	}
	if err := g.trust.Socket(path, info.UID, info.GID); err != nil && g.launched(path) == nil {
		return err
	}
	return explainDenied(sock.MayConnect(path, info), path, info)
}

// explainDenied adds a remedy to a permission error.
func explainDenied(err error, path string, info sock.Info) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return &trust.Refusal{
		Reason: trust.Denied,
		Problem: fmt.Sprintf("socket %s (mode %04o, owner %d) may not be opened by user %d of this process: permission denied",
			path, info.Mode.Perm(), info.UID, os.Geteuid()),
		Remedy: "give the host the capability CAP_DAC_OVERRIDE, or let the plugin create its socket with mode 0660 and a group of the host",
	}
}

// account returns the account of a plugin: the owner of the socket or, if that is root or the host's user, the user of the listening
// process.
func (g *gate) account(ctx context.Context, path string, owner uint32, peer sock.Credentials) (plugin.Account, error) {
	if launch := g.launched(path); launch != nil && launch.Owns(ctx, peer.PID) {
		account := plugin.Account{UID: peer.UID, GID: peer.GID, Known: true, Launched: true, Name: launch.Name()}
		if uid, gid, ok := launch.RegisteredFor(); ok {
			account.UID, account.GID = uid, gid
		}
		return account, nil
	}
	if err := g.trust.Listener(path, peer.UID, peer.GID); err != nil {
		return plugin.Account{}, err
	}
	account := plugin.Account{UID: peer.UID, GID: peer.GID, Known: true}
	if !g.trust.Privileged(owner) {
		account.UID = owner
	}
	return account, nil
}

// endpoint returns an error if a plugin may not announce an endpoint. An endpoint that does not exist yet is checked with each connection.
func (g *gate) endpoint(ptype, path string, by plugin.Account) error {
	if path == "" || !by.Known || g.trust.Privileged(by.UID) {
		return nil
	}
	info, err := sock.Stat(path)
	switch {
	case err != nil:
		return nil //nolint:nilerr // nothing can connect to a missing endpoint
	case info.Mode&fs.ModeSymlink != 0:
		return g.trust.Link(path)
	}
	return g.trust.Endpoint(ptype, path, by, info.UID)
}

// set replaces the refusals and returns the new ones.
func (g *gate) set(now []dirwatch.Refusal) (fresh []dirwatch.Refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range now {
		if was := g.find(r.Path); was == nil || was.Info.ID != r.Info.ID || was.Err.Error() != r.Err.Error() {
			fresh = append(fresh, r)
		}
	}
	g.refused = now
	return fresh
}

// source returns how the host learned of the socket at a path.
func (g *gate) source(path string) plugin.Source {
	if l := g.launched(path); l != nil && l.ServesAt(path) {
		return plugin.SourceLaunched
	}
	return plugin.SourceDiscovered
}

// why returns the reason why the file at a path, or a directory on the way to it, is refused; nil if none is.
func (g *gate) why(path string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if r := g.find(path); r != nil {
			return r.Err
		}
		parent := filepath.Dir(path)
		if parent == path {
			return nil
		}
		path = parent
	}
}

// find returns the refusal at a path, or nil. mu is held.
func (g *gate) find(path string) *dirwatch.Refusal {
	i, found := slices.BinarySearchFunc(g.refused, path, func(r dirwatch.Refusal, path string) int { return cmp.Compare(r.Path, path) })
	if !found {
		return nil
	}
	return &g.refused[i]
}

func (g *gate) statuses() []plugin.Status {
	g.mu.Lock()
	refused := g.refused
	g.mu.Unlock()
	statuses := make([]plugin.Status, len(refused))
	for i, r := range refused {
		statuses[i] = plugin.Status{
			State: plugin.StateRefused, SocketPath: r.Path, Source: g.source(r.Path), FirstSeen: r.Since, Since: r.Since,
			LastError: r.Err.Error(),
		}
	}
	return statuses
}

// refuse replaces the refusals and reports the new ones.
func (w *Watcher) refuse(p *pipeline, refused []dirwatch.Refusal) {
	for _, r := range p.gate.set(refused) {
		if refusal, ok := errors.AsType[*trust.Refusal](r.Err); ok && w.Registration.Refused != nil {
			w.Registration.Refused(refusal.Reason)
		}
		suppressed, ok := p.gate.logged.Allow(r.Info.UID, time.Now())
		if !ok {
			continue
		}
		message := r.Err.Error()
		if suppressed > 0 {
			message += fmt.Sprintf(" (%d earlier refusals in total were not reported)", suppressed)
		}
		p.log.Warn("not trusted", "path", r.Path, "reason", message)
		w.observePath(plugin.EventRefused, r.Path, message)
	}
}
