package controlapi

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxFilter is the maximum length of a list in a request, and maxDevices that of a list of devices. An empty value has two bytes in a
// request and sixteen in memory, and each value is compared with everything that the request may select.
const maxFilter, maxDevices = 256, 16 << 10

// bounds is a [connect.Interceptor] that refuses requests with lists that are too long, and single responses for which there is no room.
// Streams call countList themselves.
type bounds struct{}

// WrapUnary implements [connect.Interceptor].
func (bounds) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		if err := checkLists(request.Any()); err != nil {
			return nil, err
		}
		response, err := next(ctx, request)
		if err == nil {
			err = countAnswer(ctx, request.Spec().Procedure, response.Any())
		}
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (bounds) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, stream connect.StreamingHandlerConn) error {
		return next(ctx, filteredStream{stream})
	}
}

// WrapStreamingClient implements [connect.Interceptor]; the daemon does not call its own API.
func (bounds) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// filteredStream checks the lists of the requests on a stream.
type filteredStream struct{ connect.StreamingHandlerConn }

func (s filteredStream) Receive(request any) error {
	if err := s.StreamingHandlerConn.Receive(request); err != nil {
		return err
	}
	return checkLists(request)
}

// checkLists returns an error if a list of a request is too long.
func checkLists(request any) error {
	if m, ok := request.(proto.Message); ok {
		return checkFields("", m.ProtoReflect())
	}
	return nil
}

func checkFields(within string, m protoreflect.Message) (err error) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name, count, most := within+string(field.Name()), 0, maxFilter
		switch {
		case field.IsMap():
			count = value.Map().Len()
		case field.IsList():
			count = value.List().Len()
		case field.Message() != nil:
			err = checkFields(name+".", value.Message())
		}
		if field.Name() == "devices" {
			most = maxDevices
		}
		if count > most {
			err = connect.NewError(connect.CodeInvalidArgument,
				fmt.Errorf("the field %s has %d values, and may have %d: ask for less, or for all", name, count, most))
		}
		return err == nil
	})
	return err
}
