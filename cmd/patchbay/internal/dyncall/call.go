package dyncall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jhump/protoreflect/v2/protoresolve"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // the usual types of details
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Requests returns the next request of a call, or [io.EOF] after the last one. It returns when ctx ends.
type Requests func(ctx context.Context) (proto.Message, error)

// One returns the requests of a call that has only this one.
func One(request proto.Message) Requests {
	sent := false
	return func(context.Context) (proto.Message, error) {
		if sent {
			return nil, io.EOF
		}
		sent = true
		return request, nil
	}
}

// Call calls a method and passes each answer, as compact JSON, to answer, in order. A method that takes one request gets the first one; one
// that takes a stream gets all, while the answers come. It blocks until the server has ended the call, ctx ends, or requests or answer
// return an error. An error of the server is a [*StatusError].
func (s *Schema) Call(
	ctx context.Context, conn grpc.ClientConnInterface, method protoreflect.MethodDescriptor, requests Requests, answer func([]byte) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	path := "/" + methodPath(method)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{
		StreamName:    string(method.Name()),
		ClientStreams: method.IsStreamingClient(),
		ServerStreams: method.IsStreamingServer(),
	}, path)
	if err != nil {
		return s.explain(ctx, method, err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if err := s.send(ctx, stream, method, requests); err != nil {
			cancel(err)
		}
	}()
	err = s.receive(stream, method, answer, cancel)
	if err != nil {
		err = s.explain(ctx, method, err)
	}
	cancel(nil)
	<-sent
	return err
}

// send sends the requests. It returns an error of this side; one of the server is seen by who receives.
func (s *Schema) send(
	ctx context.Context, stream grpc.ClientStream, method protoreflect.MethodDescriptor, requests Requests,
) error {
	for {
		request, err := requests(ctx)
		if errors.Is(err, io.EOF) {
			_ = stream.CloseSend()
			return nil
		}
		if err != nil {
			return err
		}
		switch err := stream.SendMsg(request); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil: // one of this side, such as a message that is too large
			return newStatusError(s.types(), methodPath(method), err)
		}
		if !method.IsStreamingClient() {
			_ = stream.CloseSend()
			return nil
		}
	}
}

// receive passes the answers on. It returns an error of the server; one of this side is told to fail.
func (s *Schema) receive(
	stream grpc.ClientStream, method protoreflect.MethodDescriptor, answer func([]byte) error, fail context.CancelCauseFunc,
) error {
	options := protojson.MarshalOptions{Resolver: s.types()}
	for {
		message := dynamicpb.NewMessage(method.Output())
		err := stream.RecvMsg(message)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := options.Marshal(message)
		if err != nil {
			err = fmt.Errorf("cannot write an answer of %s as JSON: %w", methodPath(method), err)
		} else {
			err = answer(text)
		}
		if err != nil {
			fail(err)
			return err
		}
		if !method.IsStreamingServer() {
			return nil
		}
	}
}

// deadlineSlack is how far the other side may be ahead in seeing that a deadline has passed.
const deadlineSlack = time.Second

// Late reports whether err ended a call because the deadline of its context passed. The side whose clock is ahead notices that first, and a
// service whose context ends may answer Canceled, as the health service does.
func Late(ctx context.Context, err error) bool {
	deadline, has := ctx.Deadline()
	if !has || time.Until(deadline) >= deadlineSlack {
		return false
	}
	code := status.Code(err)
	return code == codes.DeadlineExceeded || code == codes.Canceled
}

// explain returns the error of a call in the form that it has for callers.
func (s *Schema) explain(ctx context.Context, method protoreflect.MethodDescriptor, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	late := Late(ctx, err)
	if late {
		err = status.Error(codes.DeadlineExceeded, "the call has timed out")
	}
	e := newStatusError(s.types(), methodPath(method), err)
	e.Late = late
	return e
}

// maxAnswer bounds one answer in bytes.
const maxAnswer = 4 << 20

// Dial connects to the Unix socket at path; a socket on which nobody listens is an error of Dial already, and nothing is tried again. The
// caller closes the connection.
func Dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	if _, err := sock.Probe(ctx, path); err != nil {
		return nil, fmt.Errorf("cannot connect to socket %s: %w", path, err)
	}
	return grpcsock.Dial(path, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithDisableServiceConfig())
}

// How much of the details of an error is shown.
const (
	maxDetails     = 8
	maxDetailBytes = 2000
)

// StatusError is the error with which a server, or what is on the way to it, ended a call. Its text has the code, what the server says
// about it, which may hold any characters, and what the server added, as JSON.
type StatusError struct {
	// Late says that the call ended because the deadline of its context passed.
	Late bool

	text string
	err  error
}

func newStatusError(types protoresolve.TypeResolver, method string, err error) *StatusError {
	st, _ := status.FromError(err) // anything else is Unknown, with the text of the error
	text := fmt.Sprintf("cannot call %s: %v", method, st.Code())
	if st.Message() != "" {
		text += ": " + st.Message()
	}
	details := st.Proto().GetDetails()
	var said []string
	for _, detail := range details[:min(len(details), maxDetails)] {
		said = append(said, sayDetail(types, detail))
	}
	if more := len(details) - maxDetails; more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	if len(said) > 0 {
		text += "; details: " + strings.Join(said, ", ")
	}
	return &StatusError{text: text, err: err}
}

func sayDetail(types protoresolve.TypeResolver, detail *anypb.Any) string {
	text, err := protojson.MarshalOptions{Resolver: types}.Marshal(detail)
	var compact bytes.Buffer
	if err != nil || json.Compact(&compact, text) != nil {
		return fmt.Sprintf("%.200s (%d bytes)", detail.GetTypeUrl(), len(detail.GetValue()))
	}
	if compact.Len() > maxDetailBytes {
		return fmt.Sprintf("%s… (%d bytes)", compact.Bytes()[:maxDetailBytes], compact.Len())
	}
	return compact.String()
}

func (e *StatusError) Error() string { return e.text }

// Unwrap returns the error of the gRPC library.
func (e *StatusError) Unwrap() error { return e.err }
