package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// instance is one running copy of a driver.
type instance struct {
	driver, endpoint, service string
	hasHealth                 bool
	callTimeout               time.Duration
	conn                      *grpc.ClientConn

	endHealth context.CancelFunc // guarded by Handler.mu; nil while no health stream is kept

	mu      sync.Mutex
	users   int // calls that run
	retired bool
}

func newInstance(driver, path string, versions []string) *instance {
	service, _ := Negotiate(versions) // was validated
	return &instance{driver: driver, endpoint: path, service: service, hasHealth: slices.Contains(versions, serviceHealth)}
}

// connectAttempts is how often a connection is tried that somebody accepts and that does not become ready, within a second or so each. One
// that nobody accepts is not tried again here: the pipeline does that, with back-off.
const connectAttempts = 3

// connect waits until there is a connection. If there is an error, retire has to be called all the same.
func (in *instance) connect(ctx context.Context, timeout time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		conn, err := endpoint.Dial(ctx, in.endpoint)
		if err != nil {
			return err
		}
		if in.conn = conn; isReady(bounded, conn) {
			return nil
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("given up before there was a connection: %w: %w", context.Cause(ctx), cache.ErrRetry)
		case bounded.Err() != nil:
			return fmt.Errorf("no gRPC connection within %v: %w: %w", timeout, in.whyNot(ctx), cache.ErrRetry)
		case attempt == connectAttempts || !in.accepts(bounded):
			return fmt.Errorf("no gRPC connection: %w: %w", in.whyNot(ctx), cache.ErrRetry)
		}
		_ = in.close() // the next attempt begins anew
	}
}

// isReady waits until a connection is made, has failed, or ctx ends.
func isReady(ctx context.Context, conn *grpc.ClientConn) bool {
	for state := conn.GetState(); ; state = conn.GetState() {
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.Idle:
			conn.Connect() // nobody asked for it yet, or it was there and has gone again
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		default:
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// accepts reports whether somebody accepts at the endpoint.
func (in *instance) accepts(ctx context.Context) bool {
	_, err := sock.Probe(ctx, in.endpoint)
	return err == nil
}

// whyNot says why there is no connection.
func (in *instance) whyNot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := sock.Probe(ctx, in.endpoint); err != nil {
		return err
	}
	return errors.New("somebody accepts there, and does not answer as gRPC; is it the endpoint of the driver?")
}

// use keeps the connection until done is called.
func (in *instance) use() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.users++
}

func (in *instance) done() {
	in.mu.Lock()
	in.users--
	last := in.retired && in.users == 0
	in.mu.Unlock()
	if last {
		_ = in.close()
	}
}

// retire closes the connection as soon as no call uses it.
func (in *instance) retire() {
	in.mu.Lock()
	in.retired = true
	unused := in.users == 0
	in.mu.Unlock()
	if unused {
		_ = in.close()
	}
}

// close closes the connection at once. An error of closing it twice is none.
func (in *instance) close() error {
	if in.conn == nil {
		return nil
	}
	if err := in.conn.Close(); err != nil && !errors.Is(err, grpc.ErrClientConnClosing) { //nolint:staticcheck // what Close returns
		return err
	}
	return nil
}

// stopHealth ends the health stream, if there is one. The caller holds Handler.mu.
func (in *instance) stopHealth() {
	if in.endHealth != nil {
		in.endHealth()
		in.endHealth = nil
	}
}
