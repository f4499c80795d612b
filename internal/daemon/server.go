package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// stopTimeout bounds how long the end of the server waits for calls that do not notice that they were cut short.
	stopTimeout = 5 * time.Second
	// headerTimeout bounds how long a caller may take to say what it wants, idleTimeout how long it may then stay without a call.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// maxRequest bounds one request in bytes. None that is meant seriously comes near.
	maxRequest = 64 << 10
)

type server struct {
	// name is what the server serves, for errors.
	name   string
	http   *http.Server
	refuse context.CancelCauseFunc
	served chan error
	log    *slog.Logger
}

// serve starts the server of the control API and returns. The caller stops the server. If it fails before that, failed is called and
// stop returns the error.
func serve(listener net.Listener, g *guard, c *control, failed func(), log *slog.Logger) *server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // what gRPC clients speak on a socket without TLS
	h := &http.Server{Handler: newControlHandler(g, c), Protocols: protocols, ConnContext: g.connContext}
	h2proxy.BoundHTTP(h)
	return startServer("the control API", listener, h, failed, log)
}

// newControlHandler returns what answers the control API, and calls of plugins at its socket.
func newControlHandler(g *guard, c *control) http.Handler {
	mux := http.NewServeMux()
	guarded := []connect.HandlerOption{
		connect.WithRequestGate(g.gate), connect.WithInterceptors(g), connect.WithReadMaxBytes(maxRequest),
		connect.WithCompression("gzip", nil, nil), // what is compressed is far larger than what counts, and the caller is on this machine
	}
	own := func(path string, service http.Handler) {
		mux.Handle(path, c.requests.handler(c.lists.handler(service)))
	}
	own(patchbayv1connect.NewControlServiceHandler(c, guarded...))
	own(patchbayv1connect.NewFleetServiceHandler(fleetService{c.fleet}, guarded...))
	own(patchbayv1connect.NewDeviceServiceHandler(deviceService{c.handlers},
		append(guarded, connect.WithReadMaxBytes(maxDeviceRequest))...))
	mux.Handle(reflectionPath, newReflection(g, c.requests, c.lists, c.calls))
	if c.calls != nil {
		mux.Handle("/", c.calls)
	}
	return mux
}

func startServer(name string, listener net.Listener, h *http.Server, failed func(), log *slog.Logger) *server {
	calls, refuse := context.WithCancelCause(context.Background())
	h.ReadHeaderTimeout = cmp.Or(h.ReadHeaderTimeout, headerTimeout)
	h.IdleTimeout = cmp.Or(h.IdleTimeout, idleTimeout)
	h.BaseContext = func(net.Listener) context.Context { return calls }
	h.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	s := &server{name: name, http: h, refuse: refuse, served: make(chan error, 1), log: log}
	go func() {
		err := h.Serve(listener)
		if !errors.Is(err, http.ErrServerClosed) {
			failed()
		}
		s.served <- err
	}()
	return s
}

// endCalls ends the calls in progress and answers new ones with an error that says that the daemon is stopping.
func (s *server) endCalls() { s.refuse(errStopping) }

// stop ends all calls, closes the listener and waits until nothing of the server is left.
func (s *server) stop() error {
	s.endCalls() // no harm if it was called before
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// A caller that does not read has its call end like this, and is no reason for the daemon to end with an error.
		s.log.Warn("calls were still in progress and were aborted", "server", s.name, "after", stopTimeout)
		err = s.http.Close()
	}
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("cannot go on serving %s: %w", s.name, served))
	}
	return err
}

// listenControl returns a listener on the control socket: the one that the service manager passed, or a new one.
func (d *Daemon) listenControl() (net.Listener, error) {
	if passed := d.config.ControlListener; passed != nil {
		d.log.Info("the control socket was passed by the service manager", "controlSocket", d.config.ControlSocket)
		return passed, nil
	}
	l, err := sock.Listen(d.config.ControlSocket, controlMode)
	if err != nil {
		return nil, advise(fmt.Errorf("cannot serve the control API: %w", err), "control socket")
	}
	return l, nil
}

// listenTCP listens on an address, and waits for at most a second for whoever listens there: a daemon that was killed while it began to
// start a process shared its listener with that one.
func listenTCP(ctx context.Context, addr string) (net.Listener, error) {
	for end := time.Now().Add(time.Second); ; {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) || !backoff.Pause(ctx, 10*time.Millisecond) {
			return l, err
		}
	}
}

// listenHTTP listens where the configuration says, nil if nowhere.
func (c Config) listenHTTP() (net.Listener, error) {
	if c.HTTPListener != nil {
		return c.HTTPListener, nil
	}
	if c.HTTP == "" {
		return nil, nil
	}
	addr, err := parseHTTPAddr(c.HTTP)
	if err != nil {
		return nil, err
	}
	// gofail: var daemonHTTP string
	// return nil, fmt.Errorf("cannot serve HTTP: %s; choose another address", daemonHTTP)
	listener, err := listenTCP(context.Background(), addr.String())
	if err != nil {
		return nil, fmt.Errorf("cannot serve HTTP: %w; choose another address", err)
	}
	return listener, nil
}
