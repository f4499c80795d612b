// Package server has functions that the servers of the daemon share: listening, starting and stopping HTTP servers, and the error of calls
// that end because the daemon stops.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

const (
	// StopTimeout bounds how long Stop waits for canceled calls to return.
	StopTimeout = 5 * time.Second
	// HeaderTimeout bounds reading the header of a request. idleTimeout is how long a connection may be idle.
	HeaderTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// ErrStopping is the error of every call that ends because the daemon stops.
var ErrStopping = errors.New("the daemon is stopping")

// Server is an HTTP server.
type Server struct {
	// name identifies the server in errors and logs.
	name   string
	http   *http.Server
	refuse context.CancelCauseFunc
	served chan error
	log    *slog.Logger
}

// Start starts a server and returns; name identifies it in errors and logs. The caller must call [Server.Stop]. If the server fails before
// that, failed is called and Stop returns the error.
func Start(name string, listener net.Listener, h *http.Server, failed func(), log *slog.Logger) *Server {
	calls, refuse := context.WithCancelCause(context.Background())
	h.ReadHeaderTimeout = cmp.Or(h.ReadHeaderTimeout, HeaderTimeout)
	h.IdleTimeout = cmp.Or(h.IdleTimeout, idleTimeout)
	h.BaseContext = func(net.Listener) context.Context { return calls }
	h.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	s := &Server{name: name, http: h, refuse: refuse, served: make(chan error, 1), log: log}
	go func() {
		err := h.Serve(listener)
		if !errors.Is(err, http.ErrServerClosed) {
			failed()
		}
		s.served <- err
	}()
	return s
}

// EndCalls cancels the calls in progress and refuses new ones with [ErrStopping].
func (s *Server) EndCalls() { s.refuse(ErrStopping) }

// Stop cancels all calls, closes the listener and waits until the server has stopped.
func (s *Server) Stop() error {
	s.EndCalls()
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// A client that does not read is not an error of the daemon.
		s.log.Warn("calls were still in progress and were aborted", "server", s.name, "after", StopTimeout)
		err = s.http.Close()
	}
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("cannot go on serving %s: %w", s.name, served))
	}
	return err
}

// ListenTCP listens on a TCP address. If the address is in use, it retries for up to a second: a process that a killed daemon was just
// starting may still share its listener.
func ListenTCP(ctx context.Context, addr string) (net.Listener, error) {
	for end := time.Now().Add(time.Second); ; {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) || !backoff.Pause(ctx, 10*time.Millisecond) {
			return l, err
		}
	}
}

// AdviseOnPath adds advice to an error about a path that cannot be written; what names the kind of path.
func AdviseOnPath(err error, what string) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; let user %d write there or choose another %s", err, os.Geteuid(), what)
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w; choose another %s", err, what)
	}
	return err
}
