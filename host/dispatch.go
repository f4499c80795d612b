package host

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// dispatch passes a call to the method of the service.
func (s service) dispatch(method string, stream grpc.ServerStream) error {
	for i := range s.desc.Methods {
		if m := &s.desc.Methods[i]; m.MethodName == method {
			reply, err := m.Handler(s.impl, stream.Context(), stream.RecvMsg, nil)
			if err != nil {
				return err
			}
			return stream.SendMsg(reply)
		}
	}
	for i := range s.desc.Streams {
		if d := &s.desc.Streams[i]; d.StreamName == method {
			return d.Handler(s.impl, stream)
		}
	}
	return status.Errorf(codes.Unimplemented, "the service %s has no method %s", s.desc.ServiceName, method)
}
