package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
)

func TestCall(t *testing.T) {
	method := func(ctx context.Context, request string, _ ...grpc.CallOption) (string, error) {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Minute {
			t.Errorf("the deadline is %v, %v", deadline, ok)
		}
		if request == "" {
			return "", status.Error(codes.NotFound, "\x1bno")
		}
		return request + "!", nil
	}
	if answer, err := endpoint.Call(t.Context(), time.Minute, "Get", method, "a"); answer != "a!" || err != nil {
		t.Errorf("got %q, %v", answer, err)
	}
	_, err := endpoint.Call(t.Context(), time.Minute, "Get", method, "")
	if err == nil || err.Error() != `Get: NotFound: "\x1bno"` || status.Code(fmt.Errorf("what: %w", err)) != codes.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestCallErrorMeansNotYet(t *testing.T) {
	for code := codes.OK + 1; code <= codes.Unauthenticated; code++ {
		want := false
		switch code { //nolint:exhaustive // the others are final
		case codes.Canceled, codes.DeadlineExceeded, codes.FailedPrecondition, codes.Unavailable, codes.Aborted:
			want = true
		}
		if got := errors.Is(endpoint.CallError("Get", status.Error(code, "why")), cache.ErrRetry); got != want {
			t.Errorf("%v: got %v, want %v", code, got, want)
		}
	}
}
