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
	"unicode"

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

// maxDepth bounds how deep objects and arrays of a request may be nested.
const maxDepth = 1000

// Request parses the request of a method from one JSON value; empty text is an empty message. Errors have the line and the column, which
// count from 1; firstLine is the line of the first byte.
func (s *Schema) Request(method protoreflect.MethodDescriptor, text []byte, firstLine int) (proto.Message, error) {
	message := dynamicpb.NewMessage(method.Input())
	if len(bytes.TrimSpace(text)) == 0 {
		return message, nil
	}
	options := protojson.UnmarshalOptions{Resolver: s.types(), RecursionLimit: maxDepth}
	if err := options.Unmarshal(text, message); err != nil {
		what := jsonError(err, firstLine)
		if strings.Contains(what, ": unknown field ") {
			what += "; --describe " + methodPath(method) + " shows the fields"
		}
		return nil, errors.New(what)
	}
	return message, nil
}

// jsonError returns the text of an error of package protojson without its prefix, which has varying spaces, and with the right line.
func jsonError(err error, firstLine int) string {
	text := strings.TrimLeftFunc(strings.TrimPrefix(err.Error(), "proto:"), unicode.IsSpace)
	text = strings.TrimPrefix(text, "syntax error ")
	var line, column int
	if n, scanErr := fmt.Sscanf(text, "(line %d:%d):", &line, &column); scanErr == nil && n == 2 {
		_, what, _ := strings.Cut(text, "): ")
		return fmt.Sprintf("line %d, column %d: %s", line+firstLine-1, column, what)
	}
	return text
}

// Requests returns the next request of a call, or [io.EOF] after the last one. It returns when ctx is done.
type Requests func(ctx context.Context) (proto.Message, error)

// Call calls a method and passes each answer, as compact JSON, to answer, in order. For a method that takes one request, it asks for one;
// for a stream, it sends requests while it receives answers. It blocks until the server ends the call, ctx is done, or requests or answer
// return an error. An error from the server or the connection is a [*StatusError].
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
	err = s.receive(stream, method, answer)
	if err != nil {
		err = s.explain(ctx, method, err)
	}
	cancel(nil)
	<-sent
	return err
}

// send sends the requests. It returns only errors of this side; receive returns those of the server.
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
		case err != nil: // for example, the message is too large
			return newStatusError(s.types(), methodPath(method), err)
		}
		if !method.IsStreamingClient() {
			_ = stream.CloseSend()
			return nil
		}
	}
}

// receive passes the answers to answer. Its errors are statuses, or those of this side.
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
			return fmt.Errorf("cannot write an answer of %s as JSON: %w", methodPath(method), err)
		}
		if err := answer(text); err != nil || !method.IsStreamingServer() {
			return err
		}
	}
}

// deadlineSlack is how much earlier the server may notice that a deadline has passed.
const deadlineSlack = time.Second

// Late reports whether a call failed with err because the deadline of its context has passed. The server may notice the deadline earlier,
// and some services answer Canceled when their context ends, such as the health service.
func Late(ctx context.Context, err error) bool {
	deadline, ok := ctx.Deadline()
	if !ok || time.Until(deadline) >= deadlineSlack {
		return false
	}
	code := status.Code(err)
	return code == codes.DeadlineExceeded || code == codes.Canceled
}

// explain returns the error of [Schema.Call]. For a status, that is the cause of a cancelled context, or a [*StatusError].
func (s *Schema) explain(ctx context.Context, method protoreflect.MethodDescriptor, err error) error {
	if _, isStatus := status.FromError(err); !isStatus {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	if Late(ctx, err) {
		err = status.Error(codes.DeadlineExceeded, "the call has timed out")
	}
	return newStatusError(s.types(), methodPath(method), err)
}

// maxAnswer bounds one answer in bytes.
const maxAnswer = 4 << 20

// Dial connects to the Unix socket at path. It returns an error if no process listens there. The caller must close the connection.
func Dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	if _, err := sock.Probe(ctx, path); err != nil {
		return nil, fmt.Errorf("cannot connect to socket %s: %w", path, err)
	}
	return grpcsock.Dial(path, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithDisableServiceConfig())
}

// Limits on the details of an error in its text.
const (
	maxDetails     = 8
	maxDetailBytes = 2000
)

// StatusError is a gRPC error with a text for users.
type StatusError struct {
	// Text has the code and the message of the error and, for a call, its details as JSON. It may contain any characters.
	Text string
	// Err is the error of the gRPC library.
	Err error
}

func (e *StatusError) Error() string { return e.Text }

// Unwrap returns Err.
func (e *StatusError) Unwrap() error { return e.Err }

func newStatusError(types protoresolve.TypeResolver, method string, err error) *StatusError {
	st, _ := status.FromError(err)
	text := fmt.Sprintf("cannot call %s: %v", method, st.Code())
	if st.Message() != "" {
		text += ": " + st.Message()
	}
	details := st.Proto().GetDetails()
	var texts []string
	for _, detail := range details[:min(len(details), maxDetails)] {
		texts = append(texts, detailText(types, detail))
	}
	if more := len(details) - maxDetails; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	if len(texts) > 0 {
		text += "; details: " + strings.Join(texts, ", ")
	}
	return &StatusError{Text: text, Err: err}
}

func detailText(types protoresolve.TypeResolver, detail *anypb.Any) string {
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
