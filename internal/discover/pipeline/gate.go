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
	// Owns says whether a process is the plugin's, or answers for it. It waits until the plugin has been started, or ctx ends.
	Owns(ctx context.Context, pid int) bool
	// ServesAt reports whether it was told to serve at the socket with this path.
	ServesAt(socketPath string) bool
	// RegisteredFor returns who answers for the plugin, if that is not the one who listens.
	RegisteredFor() (uid, gid uint32, ok bool)
	// Name is the one under which it was launched.
	Name() string
	// Introduction is what the plugin has said of itself before it served, encoded as its answer to GetInfo would be; nil if nothing, or if
	// it was returned before. It does not block.
	Introduction() []byte
}

// gate applies the rule of trust to what is found, and remembers what it refuses. It is a [dirwatch.Judge].
type gate struct {
	trust *trustjudge.Judge
	// launched is Watcher.Launched.
	launched func(path string) Launch

	// mu guards what follows. It is taken with the reconciler's lock held, so nothing is called with it.
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

// explainDenied makes an error of permission one that says what to do.
func explainDenied(err error, path string, info sock.Info) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return &trust.Refusal{
		Reason: trust.Denied,
		Problem: fmt.Sprintf("socket %s (mode %04o, owner %d) may not be opened by user %d of this process: permission denied",
			path, info.Mode.Perm(), info.UID, os.Geteuid()),
		Remedy: "give the host the capability CAP_DAC_OVERRIDE, or have the plugin make its socket with mode 0660 and a group of the host",
	}
}

// account says who answers for a plugin: who owns the socket or, if that is root or the host's user, who listens on it.
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

// endpoint says why a plugin may not have the endpoint that it announces. One that is not there yet is judged when it is connected to.
func (g *gate) endpoint(ptype, path string, by plugin.Account) error {
	if path == "" || !by.Known || g.trust.Privileged(by.UID) {
		return nil
	}
	info, err := sock.Stat(path)
	switch {
	case err != nil:
		return nil //nolint:nilerr // Nobody connects to what is not there.
	case info.Mode&fs.ModeSymlink != 0:
		return g.trust.Link(path)
	}
	return g.trust.Endpoint(ptype, path, by, info.UID)
}

// set takes over what is refused now and returns what was not before.
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

// source returns how what is at a path came to the host.
func (g *gate) source(path string) plugin.Source {
	if l := g.launched(path); l != nil && l.ServesAt(path) {
		return plugin.SourceLaunched
	}
	return plugin.SourceDiscovered
}

// why says why what is at a path, or on the way to it, is refused; nil if it is not.
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

// find returns what is refused at a path. mu is held.
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

// refuse takes over what is refused now, and tells what is new.
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
