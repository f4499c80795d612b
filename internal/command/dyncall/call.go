package dyncall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
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
	path := "/" + MethodPath(method)
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
	err = s.receive(stream, method, answer)
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
			return newStatusError(s.types(), MethodPath(method), err)
		}
		if !method.IsStreamingClient() {
			_ = stream.CloseSend()
			return nil
		}
	}
}

// answerError is an error of who takes the answers.
type answerError struct{ error }

func (e answerError) Unwrap() error { return e.error }

func (s *Schema) receive(stream grpc.ClientStream, method protoreflect.MethodDescriptor, answer func([]byte) error) error {
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
			return answerError{fmt.Errorf("cannot write an answer of %s as JSON: %w", MethodPath(method), err)}
		}
		if err := answer(text); err != nil {
			return answerError{err}
		}
		if !method.IsStreamingServer() {
			return nil
		}
	}
}

// deadlineSlack is how far the other side may be ahead in seeing that a deadline has passed.
const deadlineSlack = time.Second

// Late says whether err says of a call that the deadline of its context passed. That holds on both sides, and whose clock is ahead sees it
// first.
func Late(ctx context.Context, err error) bool {
	deadline, has := ctx.Deadline()
	return has && status.Code(err) == codes.DeadlineExceeded && time.Until(deadline) < deadlineSlack
}

// explain returns the error of a call in the form that it has for callers.
func (s *Schema) explain(ctx context.Context, method protoreflect.MethodDescriptor, err error) error {
	if own, ok := errors.AsType[answerError](err); ok {
		return own.error
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	late := Late(ctx, err)
	if late {
		err = status.Error(codes.DeadlineExceeded, "the time that the call may take is over")
	}
	e := newStatusError(s.types(), MethodPath(method), err)
	e.Late = late
	return e
}
