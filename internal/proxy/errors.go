package proxy

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

// isLost reports whether err means that the connection ended during a call. A plugin may use the same codes; the text distinguishes them.
func isLost(err error) bool {
	s := status.Convert(err) // other errors get codes.Unknown
	return s.Code() == codes.Unavailable && strings.HasPrefix(s.Message(), "error reading from server: ") ||
		s.Code() == codes.Canceled && strings.HasPrefix(s.Message(), h2proxy.Closing)
}

// CallError returns the status of a call that could not be made, with the code and details of err. Its text names what was called, for
// example "plugin csi-node/hostpath.csi.k8s.io", exactly once, even if err names it already.
func CallError(name string, err error) error {
	s := status.Convert(unavailableUnlessStatus(err)).Proto()
	if isLost(err) {
		s.Code = int32(codes.Unavailable) // the caller has not canceled the call
	}
	if tried := "cannot call " + name + ": "; !strings.HasPrefix(s.GetMessage(), tried) {
		s.Message = tried + s.GetMessage()
	}
	return status.FromProto(s).Err()
}

// unavailableUnlessStatus converts an error to a gRPC status, as the documentation of Director describes.
func unavailableUnlessStatus(err error) error {
	if err == nil || errors.Is(err, h2proxy.ErrNotBegun) { // an h2proxy.Server sends it as REFUSED_STREAM
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
