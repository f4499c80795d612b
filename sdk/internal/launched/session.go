// Package launched connects a plugin to the host that launched it: it reads the handshake from standard input, makes the connection with
// its ticket, and stops the plugin when standard input ends. A [Session] does this for the process, or in tests for a context.
//
// It serves nothing and knows no plugin: that is package sdk.
package launched

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
)

// errStopped is the cause of the end of a context because the host closed standard input.
var errStopped = errors.New("the host asked the plugin to stop")

// errRunTwice is returned by a second Run.
var errRunTwice = errors.New("this process was launched as one plugin and runs it already: use one Serve or Run, or nest them")

// Session is a plugin's link to its host. Its methods are safe for concurrent use.
type Session struct {
	shake  *handshake.Handshake // nil without a host
	stdin  *os.File
	stderr io.Writer
	conn   func() (*grpc.ClientConn, error) // once, on first use
	// listener is the socket that the host created for the plugin, until TakeListener returns it.
	listener atomic.Pointer[Listener]

	ran atomic.Bool
}

// Listener is a socket that the host created for a plugin.
type Listener struct {
	Socket *os.File
	// introduction is the file for Introduce; nil if the host calls GetInfo instead.
	introduction *os.File
}

// Introduce sends the host the plugin's encoded answer to GetInfo, so that the host need not call it. Call it before the plugin serves.
func (l *Listener) Introduce(info []byte) {
	if l.introduction != nil {
		handshake.Introduce(l.introduction, info)
	}
}

// Alone returns the session of a plugin that no host launched.
func Alone(stderr io.Writer) *Session { return &Session{stderr: stderr} }

// New returns the session of a plugin whose handshake was read from stdin, which the session owns from now on.
func New(shake handshake.Handshake, stdin *os.File, stderr io.Writer) *Session {
	conn := sync.OnceValues(func() (*grpc.ClientConn, error) {
		return grpcsock.Dial(shake.HostSocket, grpc.WithPerRPCCredentials(ticket(shake.Ticket)))
	})
	s := &Session{shake: &shake, stdin: stdin, stderr: stderr, conn: conn}
	if l := shake.Listener; l != nil {
		made := &Listener{Socket: inherited(l.FD, shake.PluginSocket)}
		if l.Introduction > 0 {
			made.introduction = inherited(l.Introduction, "introduction")
		}
		s.listener.Store(made)
	}
	return s
}

// process returns the session of this process. The first call reads the handshake, if the environment variable for it is set, and unsets
// the variable, so that child processes do not look for a handshake. With an error it returns a session without a host.
var process = sync.OnceValues(func() (*Session, error) {
	alone := Alone(os.Stderr)
	if os.Getenv(handshake.Env) != handshake.EnvValue {
		return alone, nil
	}
	if err := os.Unsetenv(handshake.Env); err != nil {
		return alone, err
	}
	stdin, err := openStdin()
	if err != nil {
		return alone, err
	}
	shake, err := handshake.Read(bufio.NewReader(stdin)) // in one piece: what follows the line is nothing to a plugin
	if err != nil {
		_ = stdin.Close()
		return alone, err
	}
	return New(shake, stdin, os.Stderr), nil
})

// Handshake returns the handshake of the host. ok is false without a host.
func (s *Session) Handshake() (_ handshake.Handshake, ok bool) {
	if s.shake == nil {
		return handshake.Handshake{}, false
	}
	return *s.shake, true
}

// TakeListener returns the socket that the host created for the plugin. It returns nil if there is none, and on later calls.
func (s *Session) TakeListener() *Listener { return s.listener.Swap(nil) }

// OfProcess reports whether this is the session of the process, which From returns for any context.
func (s *Session) OfProcess() bool { own, _ := process(); return own == s }

// Conn returns the connection to the host, which must exist. The first call dials it; it carries the ticket, and Run closes it.
func (s *Session) Conn() (grpc.ClientConnInterface, error) {
	conn, err := s.conn()
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// LogHandler returns a handler that writes JSON lines to standard error, which a host reads. A nil level is slog.LevelInfo.
func (s *Session) LogHandler(level slog.Leveler) slog.Handler {
	return slog.NewJSONHandler(s.stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // which would be a number
			a.Value = slog.StringValue(a.Value.String())
		}
		return a
	}})
}

// Run calls run with a context that also ends when the host closes standard input, and returns when run has returned and everything is
// closed. A Run inside run just calls it.
func (s *Session) Run(ctx context.Context, run func(context.Context) error) error {
	if s.shake == nil || ctx.Value(runningKey{}) == s {
		return run(With(ctx, s))
	}
	if s.ran.Swap(true) {
		return errRunTwice
	}
	defer func() { // also for those who ask for the connection from now on
		if conn, err := s.conn(); err == nil {
			_ = conn.Close() // says only that it is closed already
		}
	}()

	ctx, cancel := context.WithCancelCause(context.WithValue(With(ctx, s), runningKey{}, s))
	defer cancel(nil)
	var reading sync.WaitGroup
	reading.Go(func() {
		// Ignore further input; both its end and an error stop the plugin.
		_, _ = io.Copy(io.Discard, s.stdin)
		cancel(errStopped)
	})
	defer func() {
		_ = s.stdin.SetReadDeadline(time.Unix(1, 0)) // what cannot have a deadline is a file, whose end is there
		reading.Wait()
		_ = s.stdin.Close()
	}()
	return run(ctx)
}

type (
	sessionKey struct{}
	runningKey struct{}
)

// With returns a context that carries the session.
func With(ctx context.Context, s *Session) context.Context {
	return context.WithValue(ctx, sessionKey{}, s)
}

// From returns the session of the context, or of the process if the context has none.
func From(ctx context.Context) (*Session, error) {
	if s, ok := ctx.Value(sessionKey{}).(*Session); ok {
		return s, nil
	}
	return process()
}

// ticket attaches itself to every call.
type ticket string

func (t ticket) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{handshake.TicketKey: string(t)}, nil
}

func (ticket) RequireTransportSecurity() bool { return false }

// openStdin returns standard input as a file whose reads can be interrupted, which those of os.Stdin cannot. It is a duplicate, so that
// closing it does not free descriptor 0 for something else.
func openStdin() (*os.File, error) {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("cannot read the host's handshake: standard input is not open: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot read the host's handshake from standard input: %w", err)
	}
	return os.NewFile(uintptr(fd), "stdin"), nil
}

// inherited returns an inherited file, and sets its close-on-exec flag.
func inherited(fd int, name string) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}
