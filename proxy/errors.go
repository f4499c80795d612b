package proxy

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/frames"
)

// isLost says whether an error is that of a connection which ended under a call. gRPC gives it codes that a plugin may use too; the text
// tells them apart.
func isLost(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch text := s.Message(); s.Code() {
	case codes.Unavailable:
		return text == "transport is closing" || strings.HasPrefix(text, "error reading from server: ") ||
			strings.HasPrefix(text, "closing transport due to: ")
	case codes.Canceled:
		return strings.HasPrefix(text, frames.Closing)
	default:
		return false
	}
}

// CannotCall returns the status of a call that could not be made, with the code and details of err. Its text names what was called, for
// example "plugin csi-node/hostpath.csi.k8s.io", exactly once, even if err names it already.
func CannotCall(name string, err error) error {
	s := status.Convert(unavailableUnlessStatus(err)).Proto()
	if isLost(err) {
		s.Code = int32(codes.Unavailable) // the caller has canceled nothing
	}
	if tried := "cannot call " + name + ": "; !strings.HasPrefix(s.GetMessage(), tried) {
		s.Message = tried + s.GetMessage()
	}
	return status.FromProto(s).Err()
}

// unavailableUnlessStatus makes an error a gRPC status, as the documentation of Director says.
func unavailableUnlessStatus(err error) error {
	if err == nil || errors.Is(err, frames.ErrNotBegun) { // which a server of fragments tells the caller in its own way
		return err
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unavailable, err.Error())
}

// ownCause returns the cause with which ctx was ended, nil if it goes on or ended in an ordinary way.
func ownCause(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}
