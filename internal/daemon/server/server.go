// Package server has what the servers of the daemon share: how they listen, how an HTTP server starts and stops, and the error with which
// calls end when the daemon stops.
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
	// StopTimeout bounds how long a server that stops waits for calls that have been canceled.
	StopTimeout = 5 * time.Second
	// HeaderTimeout bounds how long the header of a request may take, idleTimeout how long a connection may be idle after that.
	HeaderTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// ErrStopping is the error of every call that ends because the daemon stops.
var ErrStopping = errors.New("the daemon is stopping")

// Server is an HTTP server.
type Server struct {
	// name is what the server serves, for errors.
	name   string
	http   *http.Server
	refuse context.CancelCauseFunc
	served chan error
	log    *slog.Logger
}

// Start starts a server, for whose name errors and logs have the given one, and returns. The caller stops it. If it fails before that,
// failed is called and Stop returns the error.
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

// EndCalls ends the calls in progress and answers new ones with [ErrStopping].
func (s *Server) EndCalls() { s.refuse(ErrStopping) }

// Stop ends all calls, closes the listener and waits until the server has stopped.
func (s *Server) Stop() error {
	s.EndCalls()
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// A caller that does not read is not an error of the daemon.
		s.log.Warn("calls were still in progress and were aborted", "server", s.name, "after", StopTimeout)
		err = s.http.Close()
	}
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("cannot go on serving %s: %w", s.name, served))
	}
	return err
}

// ListenTCP listens on an address. It waits for at most a second for another listener: a daemon that was killed while it started a process
// shared its listener with that process.
func ListenTCP(ctx context.Context, addr string) (net.Listener, error) {
	for end := time.Now().Add(time.Second); ; {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) || !backoff.Pause(ctx, 10*time.Millisecond) {
			return l, err
		}
	}
}

// AdviseOnPath adds to the error of a path that cannot be written what to do about it; what names the kind of path.
func AdviseOnPath(err error, what string) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; let user %d write there or choose another %s", err, os.Geteuid(), what)
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w; choose another %s", err, what)
	}
	return err
}
