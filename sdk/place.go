package sdk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/systemd"
	"github.com/patchbay-dev/patchbay/sdk/internal/launched"
)

// place is where a plugin listens.
type place struct {
	net.Listener
	placed      *sock.Placed // nil for a socket of systemd
	predecessor *predecessor // until it was told to end
}

// listen makes the plugin's socket, or finds the one that it inherited. What the plugin makes itself would be left by a signal before arm
// has returned; what its host has made, that removes.
func listen(ctx context.Context, p Plugin, arm func()) (*place, error) {
	session, err := launched.From(ctx)
	if err != nil {
		return nil, err
	}
	if made := session.TakeListener(); made != nil {
		info, err := proto.Marshal(p.info())
		if err != nil {
			return nil, err
		}
		made.Introduce(info)
		shake, _ := session.Handshake()
		placed, err := sock.TakeMade(made.Socket, shake.Listener.Path, shake.PluginSocket, p.Mode)
		if err != nil {
			return nil, err
		}
		return &place{Listener: placed, placed: placed}, nil
	}
	arm()
	path, err := socketPath(session, p)
	if err != nil {
		return nil, err
	}
	if path == "" {
		l, err := inherited(p.Name)
		if err != nil {
			return nil, err
		}
		return &place{Listener: l}, nil
	}
	if path, err = filepath.Abs(path); err != nil { // the plugin may change its directory
		return nil, err
	}
	var old *predecessor
	var replace func(*net.UnixConn) error
	if p.TakeOver {
		replace = func(living *net.UnixConn) (err error) {
			old.forget()
			old, err = identify(ctx, living, p)
			if err != nil {
				return fmt.Errorf("%w on %s, and its place cannot be taken: %w", ErrInUse, path, err)
			}
			return nil
		}
	}
	placed, err := sock.Place(ctx, path, p.Mode, replace)
	if err != nil {
		old.forget()
		if errors.Is(err, sock.ErrInUse) {
			err = inUseError{err}
		}
		return nil, err
	}
	return &place{Listener: placed, placed: placed, predecessor: old}, nil
}

// inUseError makes an error of sock.Place wrap ErrInUse.
type inUseError struct{ error }

func (e inUseError) Unwrap() []error { return []error{ErrInUse, e.error} }

// socketPath says where the plugin makes its socket. Empty: it inherited one of systemd's.
func socketPath(session *launched.Session, p Plugin) (string, error) {
	if shake, ok := session.Handshake(); ok {
		if shake.PluginSocket == "" {
			return "", errors.New("the host that launched it named no socket to serve on; have the host launch it as a plugin that serves, " +
				"or use sdk.Run if it serves nothing")
		}
		return shake.PluginSocket, nil
	}
	if len(systemd.Inherited().Names()) > 0 {
		return "", nil
	}
	if p.Socket == "" {
		return "", errors.New("Plugin.Socket is empty, no host launched it and systemd passed no socket; " +
			"name a path in the host's plugin directory")
	}
	return p.Socket, nil
}

// commit ends the older instance: this one is in service.
func (p *place) commit(ctx context.Context, log *slog.Logger) {
	if p.predecessor == nil {
		return
	}
	pid := p.predecessor.process.Pid
	if err := p.predecessor.end(); err != nil {
		log.Error("cannot stop the older instance; stop it by hand", "pid", pid, "error", err)
	} else {
		log.Info("took over from the older instance, which was asked to stop", "pid", pid)
	}
	p.predecessor = nil
	if err := p.placed.Commit(ctx); err != nil {
		log.Error("cannot clean up the older instance's socket", "error", err)
	}
}

// leave takes the socket from its path. An older instance that was not told to end yet gets its place back; if it cannot, because a newer
// one has taken it, it is told now.
func (p *place) leave(ctx context.Context) error {
	if p.placed == nil {
		return nil
	}
	restored, err := p.placed.Withdraw(ctx)
	if p.predecessor == nil {
		return err
	}
	if restored {
		p.predecessor.forget()
		return err
	}
	return errors.Join(err, p.predecessor.end())
}

// inherited returns the socket that systemd passed for the plugin: the one of that name (FileDescriptorName=), or the only one.
func inherited(name string) (net.Listener, error) {
	l, err := systemd.Inherited().TakeOnly(name)
	if err != nil {
		return nil, err
	}
	if _, ok := l.(*net.UnixListener); !ok {
		return nil, errors.Join(fmt.Errorf("systemd passed a socket of %s %s, want a Unix one: use ListenStream= with a path",
			l.Addr().Network(), l.Addr()), l.Close())
	}
	return l, nil
}
