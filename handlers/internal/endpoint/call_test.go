package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
)

func TestCall(t *testing.T) {
	method := func(ctx context.Context, request string, options ...grpc.CallOption) (string, error) {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Minute || len(options) != 1 {
			t.Errorf("the deadline is %v, %v, with %d options", deadline, ok, len(options))
		}
		if request == "" {
			return "", status.Error(codes.NotFound, "\x1bno")
		}
		return request + "!", nil
	}
	wait := grpc.WaitForReady(true)
	if answer, err := endpoint.Call(t.Context(), time.Minute, "Get", method, "a", wait); answer != "a!" || err != nil {
		t.Errorf("got %q, %v", answer, err)
	}
	_, err := endpoint.Call(t.Context(), time.Minute, "Get", method, "", wait)
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

func TestTextsAreBounded(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("x", 256), strings.Repeat("x", 255) + "é", strings.Repeat("\x1b", 1<<20)} {
		clipped, quoted := endpoint.Clip(text), endpoint.Quote(text)
		if len(clipped) > 256+len("…") || len(quoted) > 4*256+len(`""…`) || strings.ContainsRune(quoted, '\x1b') {
			t.Errorf("of %d bytes: %q, %s", len(text), clipped, quoted)
		}
		if cut := len(text) > 256; cut != strings.HasSuffix(clipped, "…") || cut != strings.HasSuffix(quoted, `"…`) || !cut && clipped != text {
			t.Errorf("of %d bytes: %q, %s", len(text), clipped, quoted)
		}
	}
}
