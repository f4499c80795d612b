package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Call calls a method of a plugin. The call is cancelled after timeout, or when ctx ends. Errors are those of [CallError], with name as the
// method.
func Call[Request, Response any](
	ctx context.Context, timeout time.Duration, name string,
	method func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request,
) (Response, error) {
	// gofail: var endpointCall string
	// return *new(Response), CallError(name, status.Error(codes.Unavailable, endpointCall))
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := method(ctx, request)
	if err != nil {
		return response, CallError(name, err)
	}
	return response, nil
}

// Timeout returns the configured timeout if it is positive, and otherwise the usual one.
func Timeout(configured *time.Duration, usual time.Duration) time.Duration {
	if configured != nil && *configured > 0 {
		return *configured
	}
	return usual
}

// Bounded returns conn with a timeout for unary calls. Each call looks it up with timeout; 0 means no timeout. Streams have none.
func Bounded(conn grpc.ClientConnInterface, timeout func() time.Duration) grpc.ClientConnInterface {
	return boundedConn{conn, timeout}
}

type boundedConn struct {
	grpc.ClientConnInterface
	timeout func() time.Duration
}

func (c boundedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if timeout := c.timeout(); timeout > 0 {
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = bounded
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// CallError returns the error for a call to a plugin that failed with err, which may be the io.EOF of a stream. It has the gRPC status of
// err and a text of bounded length. errors.Is reports it as [cache.ErrRetry] if the plugin may succeed later.
func CallError(method string, err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New(method + ": the plugin ended it")
	}
	return &callError{method: method, status: status.Convert(err)}
}

type callError struct {
	method string
	status *status.Status
}

func (e *callError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.method, e.status.Code(), untrusted.Quote(e.status.Message()))
}

// GRPCStatus implements the interface that status.FromError uses.
func (e *callError) GRPCStatus() *status.Status { return e.status }

// Is reports whether target is cache.ErrRetry and the code means that a later call may succeed.
func (e *callError) Is(target error) bool {
	if target != cache.ErrRetry {
		return false
	}
	switch e.status.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.FailedPrecondition, codes.Unavailable, codes.Aborted:
		return true
	default:
		return false
	}
}
