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

// Call calls a method of a plugin, which its errors call name; see [CallError]. The call ends after timeout, or with ctx if that ends
// earlier.
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

// Timeout is the timeout for calls to a plugin: the one that is configured for it, if there is one, or the usual one.
func Timeout(configured *time.Duration, usual time.Duration) time.Duration {
	if configured != nil && *configured > 0 {
		return *configured
	}
	return usual
}

// Bounded returns conn with a timeout for unary calls, which is looked up at each call; 0 is none. Streams are not bounded.
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

// CallError is the error for a call to a plugin that failed with err. status.Code knows its code, and its text is of bounded length,
// whatever the plugin said. It is [cache.ErrRetry] if the code means "not yet". That of a stream may be io.EOF.
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

// GRPCStatus is what status.Code looks for.
func (e *callError) GRPCStatus() *status.Status { return e.status }

// Is says of an error whether it means "not yet".
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
