package endpoint

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
)

// Call calls a method of a plugin, which its errors call name; see [CallError]. The call ends after timeout, or with ctx if that ends
// earlier.
func Call[Request, Response any](
	ctx context.Context, timeout time.Duration, name string,
	method func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request, options ...grpc.CallOption,
) (Response, error) {
	// gofail: var endpointCall string
	// return *new(Response), CallError(name, status.Error(codes.Unavailable, endpointCall))
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := method(ctx, request, options...)
	if err != nil {
		return response, CallError(name, err)
	}
	return response, nil
}

// CallError is the error for a call to a plugin that failed with err. status.Code knows its code, and its text is of bounded length,
// whatever the plugin said. It is [cache.ErrRetry] if the code means "not yet".
func CallError(method string, err error) error {
	return &callError{method: method, status: status.Convert(err)}
}

type callError struct {
	method string
	status *status.Status
}

func (e *callError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.method, e.status.Code(), Quote(e.status.Message()))
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

// maxQuoted bounds what is repeated of a text, in bytes.
const maxQuoted = 256

// Quote returns a text of a plugin or a caller in quotes: printable, and cut after 256 bytes.
func Quote(text string) string {
	if len(text) > maxQuoted {
		return strconv.Quote(cut(text)) + "…"
	}
	return strconv.Quote(text)
}

// Clip returns a text of a plugin or a caller, cut after 256 bytes.
func Clip(text string) string {
	if len(text) > maxQuoted {
		return cut(text) + "…"
	}
	return text
}

// cut cuts a text where no character is torn.
func cut(text string) string { return strings.ToValidUTF8(text[:maxQuoted], "") }
