package sdk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/systemd"
	"github.com/patchbay-dev/patchbay/sdk/internal/launched"
)

// place is the socket of a plugin.
type place struct {
	net.Listener
	placed      *sock.Placed // nil for a socket of systemd
	predecessor *predecessor // until it was told to end
}

// listen returns the socket that the plugin inherited, or creates one. Before it creates one it calls arm, because a signal would otherwise
// end the process and leave the socket. The host removes a socket that it created.
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

// socketPath returns the path for the plugin's socket; empty if the plugin inherited one from systemd.
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

// commit stops the older instance, after this one is registered.
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

// leave removes the socket from its path. An older instance that was not stopped yet gets its path back. If a newer instance has taken the
// path, leave stops the older one.
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

// identifyTimeout bounds the call of GetInfo at a socket in use. It is shorter than the time that other instances wait for the lock of the
// path.
const identifyTimeout = 2 * time.Second

// predecessor is the older instance whose path this one took.
type predecessor struct{ process *os.Process }

// identify checks that the same plugin is at the other end, in a process that can be signalled. The process that the kernel reports as the
// listener must send its own PID with GetInfo; a plugin behind a socket of systemd or a proxy does not.
func identify(ctx context.Context, living *net.UnixConn, p Plugin) (*predecessor, error) {
	before, err := sock.PeerOf(living)
	if err != nil {
		return nil, err
	}
	if before.PID == 0 || before.Start == 0 {
		return nil, errors.New("its process cannot be seen from here; stop it first")
	}
	info, pid, err := ask(ctx, living)
	if err != nil {
		return nil, fmt.Errorf("pid %d does not say which plugin it is; stop it first: %w", before.PID, err)
	}
	if info.Type != p.Type || info.Name != p.Name {
		return nil, fmt.Errorf("it is another plugin, %s/%s (pid %d); choose another path", info.Type, info.Name, before.PID)
	}
	if pid != before.PID {
		return nil, fmt.Errorf("pid %d made the socket, and it is not certain who serves it; stop it first", before.PID)
	}
	if pid == os.Getpid() {
		return nil, errors.New("this process serves it already")
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	// FindProcess opens a pidfd. If the process is still the peer now, the pidfd refers to the peer, even if the PID is reused later.
	if after, err := sock.PeerOf(living); err != nil || after != before {
		return nil, errors.Join(fmt.Errorf("pid %d has just ended; try again", pid), err, process.Release())
	}
	if err := process.Signal(syscall.Signal(0)); err != nil {
		return nil, errors.Join(fmt.Errorf("pid %d cannot be asked to stop; stop it first: %w", pid, err), process.Release())
	}
	return &predecessor{process}, nil
}

func ask(ctx context.Context, living *net.UnixConn) (*registerapi.PluginInfo, int, error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	// The gRPC client closes its connection, and PeerOf needs this one afterwards, so the client gets a duplicate.
	conn, err := duplicate(living)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()   // again, but for a connection that was never used
	var used atomic.Bool // there is one connection to ask about, and no other
	client, err := grpcsock.Dial(living.RemoteAddr().String(), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		if used.Swap(true) {
			return nil, net.ErrClosed
		}
		return conn, nil
	}))
	if err != nil {
		return nil, 0, err
	}
	defer client.Close()
	var header metadata.MD
	info, err := registerapi.NewRegistrationClient(client).GetInfo(ctx, &registerapi.InfoRequest{}, grpc.Header(&header))
	if err != nil {
		return nil, 0, err
	}
	told := header.Get(pidHeader)
	if len(told) != 1 {
		return info, 0, nil
	}
	pid, err := strconv.Atoi(told[0])
	return info, pid, err
}

func duplicate(conn *net.UnixConn) (net.Conn, error) {
	f, err := conn.File()
	if err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	return c, errors.Join(err, f.Close())
}

// end sends the older instance SIGTERM. It is not an error if the process has exited.
func (p *predecessor) end() error {
	err := p.process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	p.forget()
	return err
}

// forget releases the process handle. p may be nil.
func (p *predecessor) forget() {
	if p != nil {
		_ = p.process.Release() // frees a descriptor
	}
}
