package admission

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk"
)

// maxMessage bounds in bytes what a refusal says.
const maxMessage = 4096

// resolve runs one check.
func resolve(ctx context.Context, check Check, a *pluginv1.Admission) *pluginv1.Resolution {
	r := &pluginv1.Resolution{Id: a.Id}
	pin := plugin.Pin{PackageName: a.GetPin().GetPackageName(), InstanceID: a.GetPin().GetInstanceId()}
	if err := guarded(ctx, check, pin); err != nil {
		code, message := refusal(err)
		r.Code = int32(code)
		r.Message = message
	}
	return r
}

// guarded runs the check and makes its panic a refusal.
func guarded(ctx context.Context, check Check, pin plugin.Pin) (err error) {
	defer func() {
		if p := recover(); p != nil {
			sdk.Logger(ctx, nil).Error("the admission check panicked", "pin", pin, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "the admission check panicked: %v", p)
		}
	}()
	return check(ctx, pin, Metadata{pin: pin})
}

// refusal says how an error is told to the host. The code is never OK.
func refusal(err error) (codes.Code, string) {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	code, message := s.Code(), s.Message()
	if code == codes.OK || code == codes.Unknown && !ok {
		code, message = codes.PermissionDenied, err.Error()
	}
	if len(message) > maxMessage {
		message = message[:maxMessage] + "…"
	}
	return code, strings.ToValidUTF8(message, "\uFFFD") // which protobuf asks for
}
