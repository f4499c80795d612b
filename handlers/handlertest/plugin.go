package handlertest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// behaviour is what a plugin does with its connections and calls.
type behaviour int

const (
	wellBehaved behaviour = iota
	absent                // there is no socket
	hangsUp               // ends every connection at once
	silent                // accepts, and says nothing
	stuck                 // never answers a call
	failing               // answers every call with an error
)

func (b behaviour) String() string {
	return [...]string{"behaves well", "is not there", "hangs up", "says nothing", "never answers a call", "fails all calls"}[b]
}

// fakePlugin is a plugin's endpoint. Its methods are safe for concurrent use.
type fakePlugin struct {
	name, socket string
	listener     *countingListener
	stop         func()
	stuck        atomic.Bool // whether calls hang from now on
}

// start serves on a new socket. If it cannot listen, the plugin is absent, and the case fails.
func (p *fakePlugin) start(b behaviour, services Services) {
	if b == absent {
		return
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", p.socket)
	if err != nil {
		return
	}
	p.listener.Listener, p.stop = l, func() { _ = l.Close() }
	p.stuck.Store(b == stuck)
	switch b {
	case hangsUp, silent:
		p.stop = sync.OnceFunc(p.acceptOnly(b == silent))
	default:
		p.stop = sync.OnceFunc(p.serve(b, services))
	}
}

func (p *fakePlugin) serve(b behaviour, services Services) (stop func()) {
	ended, end := context.WithCancel(context.Background())
	before := func(ctx context.Context) error {
		if p.stuck.Load() {
			select {
			case <-ctx.Done():
			case <-ended.Done():
			}
			return status.Error(codes.Unavailable, "the plugin ends")
		}
		if b == failing {
			return status.Error(codes.Internal, "the plugin fails")
		}
		return nil
	}
	s := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := before(ctx); err != nil {
				return nil, err
			}
			return next(ctx, request)
		}),
		grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := before(stream.Context()); err != nil {
				return err
			}
			return next(server, stream)
		}),
		grpc.WaitForHandlers(true),
	)
	if services != nil {
		services(s, p.name)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(p.listener) // ends with Stop
	}()
	return func() {
		end()
		s.Stop()
		<-served
	}
}

func (p *fakePlugin) acceptOnly(keep bool) (stop func()) {
	ended, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := p.listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				if keep {
					defer context.AfterFunc(ended, func() { _ = conn.Close() })()
					_, _ = io.Copy(io.Discard, conn) // until one of the sides ends it
				}
			})
		}
	})
	return func() {
		_ = p.listener.Close()
		end()
		running.Wait()
	}
}

func (p *fakePlugin) open() int64 { return p.listener.open.Load() }

func (p *fakePlugin) accepted() int64 { return p.listener.accepted.Load() }

type countingListener struct {
	net.Listener
	open, accepted atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	l.accepted.Add(1)
	return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
