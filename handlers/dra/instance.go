package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
)

type instance struct {
	driver, endpoint, service string
	health                    string // the service; empty without one
	callTimeout               time.Duration
	conn                      *endpoint.Conn
	client                    drav1.DRAPluginClient

	endHealth context.CancelFunc // guarded by Handler.mu; nil while no health stream is kept
}

func (h *Handler) connect(ctx context.Context, driver, path string, versions []string, configured *time.Duration) (*instance, error) {
	if h.isClosed() {
		return nil, ErrClosed
	}
	service, err := negotiate(versions)
	if err != nil {
		return nil, err
	}
	conn, err := readyConn(ctx, path, cmp.Or(h.ConnectTimeout, defaultConnectTimeout))
	if err != nil {
		return nil, err
	}
	return &instance{
		driver: driver, endpoint: path, service: service, health: newest(healthServices, versions),
		callTimeout: endpoint.Timeout(configured, cmp.Or(h.CallTimeout, defaultCallTimeout)), conn: conn, client: newClient(conn, service),
	}, nil
}

// connectAttempts bounds the attempts to connect to a socket that accepts but does not answer, about a second each. The pipeline retries
// refused connections, with back-off.
const connectAttempts = 3

func readyConn(ctx context.Context, path string, timeout time.Duration) (*endpoint.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		conn, err := endpoint.Dial(ctx, path)
		if err != nil {
			return nil, err
		}
		if isReady(bounded, conn.ClientConn) {
			return conn, nil
		}
		conn.Retire()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("given up before there was a connection: %w: %w", context.Cause(ctx), cache.ErrRetry)
		}
		refused := endpoint.Probe(ctx, path)
		why := cmp.Or(refused, errors.New("somebody accepts there, and does not answer as gRPC; is it the endpoint of the driver?"))
		switch {
		case bounded.Err() != nil:
			return nil, fmt.Errorf("no gRPC connection within %v: %w: %w", timeout, why, cache.ErrRetry)
		case refused != nil || attempt == connectAttempts:
			return nil, fmt.Errorf("no gRPC connection: %w: %w", why, cache.ErrRetry)
		}
	}
}

// isReady blocks until the connection is made, has failed, or ctx ends.
func isReady(ctx context.Context, conn *grpc.ClientConn) bool {
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.Idle {
			conn.Connect() // it was not asked for yet, or it was made and has ended again
		}
		if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
	return true
}

// stopHealth ends the health stream, if there is one. The caller holds Handler.mu.
func (in *instance) stopHealth() {
	if in.endHealth != nil {
		in.endHealth()
		in.endHealth = nil
	}
}
