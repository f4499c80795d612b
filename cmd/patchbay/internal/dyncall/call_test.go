package dyncall

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
)

// TestCall calls through reflection of either version and without any.
func TestCall(t *testing.T) {
	for name, register := range map[string]func(*grpc.Server){
		"v1":      func(s *grpc.Server) { reflection.RegisterV1(s) },
		"v1alpha": func(s *grpc.Server) { reflection.Register(onlyAlpha{s}) },
		"none":    func(*grpc.Server) {},
	} {
		t.Run(name, func(t *testing.T) {
			conn := serve(t, register)
			s, err := Load(t.Context(), conn, "NodeGetInfo", nil)
			if err != nil || (s.Source == Reflected) != (name != "none") {
				t.Fatal(s, err)
			}
			ctx := metadata.AppendToOutgoingContext(t.Context(), "tenant", "t-1")
			answers, err := call(ctx, s, conn, "NodeGetInfo", "")
			if err != nil || len(answers) != 1 || compact(answers[0]) != `{"nodeId":"t-1"}` {
				t.Errorf("answers %q, error %v", answers, err)
			}
			_, err = call(t.Context(), s, conn, "/csi.v1.Node/NodePublishVolume",
				`{"volume_id": "v", "volumeCapability": {"mount": {"fsType": "ext4"}}, "volumeContext": {"any.key": "v"}}`)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// onlyAlpha leaves out the newer reflection service.
type onlyAlpha struct{ *grpc.Server }

func (o onlyAlpha) RegisterService(desc *grpc.ServiceDesc, impl any) {
	if desc.ServiceName == "grpc.reflection.v1alpha.ServerReflection" {
		o.Server.RegisterService(desc, impl)
	}
}

func TestCallErrors(t *testing.T) {
	conn := serve(t, func(s *grpc.Server) { reflection.Register(s) })
	s, err := Load(t.Context(), conn, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = call(t.Context(), s, conn, "NodeUnpublishVolume", "{}")
	answer, ok := errors.AsType[*StatusError](err)
	if !ok || status.Code(answer) != codes.FailedPrecondition {
		t.Fatalf("got %#v, %v", answer, err)
	}
	want := `cannot call csi.v1.Node/NodeUnpublishVolume: FailedPrecondition: busy` + "\x1b" + `[2J; details: ` +
		`{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"MOUNTED","domain":"example.com"}`
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	method, err := s.Method("NodeGetInfo")
	if err != nil {
		t.Fatal(err)
	}
	tooLarge := &limited{ClientConnInterface: conn}
	err = s.Call(t.Context(), tooLarge, method, one(dynamicpb.NewMessage(s.Services[0].Methods().Get(0).Input())), nil)
	if answer, ok := errors.AsType[*StatusError](err); !ok || status.Code(answer) != codes.ResourceExhausted {
		t.Errorf("the error of a request that cannot be sent is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = call(ctx, s, conn, "NodeGetInfo", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call returns %v", err)
	}
}

// TestLate: a call whose context has passed its deadline is late, whether the server answers DeadlineExceeded or Canceled.
func TestLate(t *testing.T) {
	over, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	early, cancelEarly := context.WithTimeout(t.Context(), time.Hour)
	defer cancelEarly()
	for code, want := range map[codes.Code]bool{codes.DeadlineExceeded: true, codes.Canceled: true, codes.Internal: false, codes.OK: false} {
		err := status.Error(code, "Stream has ended.")
		if got := Late(over, err); got != want {
			t.Errorf("%v after the deadline: late is %v", code, got)
		}
		if Late(early, err) || Late(t.Context(), err) {
			t.Errorf("%v before the deadline is late", code)
		}
	}
}

// limited is a connection on which nothing can be sent.
type limited struct{ grpc.ClientConnInterface }

func (l *limited) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := l.ClientConnInterface.NewStream(ctx, desc, method, options...)
	return refusing{stream}, err
}

type refusing struct{ grpc.ClientStream }

func (refusing) SendMsg(any) error { return status.Error(codes.ResourceExhausted, "too large") }

// TestStreams receives a stream of answers until it is cancelled, and uses a bidirectional stream.
func TestStreams(t *testing.T) {
	conn := serve(t, func(s *grpc.Server) { reflection.Register(s) })
	s, err := Load(t.Context(), conn, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := s.Method("Health/Watch")
	if err != nil {
		t.Fatal(err)
	}
	request, err := s.Request(watch, []byte(`{"service": ""}`), 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = s.Call(ctx, conn, watch, one(request), func(text []byte) error {
		if compact(string(text)) != `{"status":"SERVING"}` {
			t.Errorf("answer %s", text)
		}
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the end of the stream is %v", err)
	}

	// The second request is sent after the first answer.
	info, err := s.Method("grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{}, 2)
	sent := 0
	requests := func(ctx context.Context) (proto.Message, error) {
		if sent > 0 {
			<-answered
		}
		if sent++; sent > 2 {
			return nil, io.EOF
		}
		return s.Request(info, []byte(`{"listServices": "*"}`), sent)
	}
	answers := 0
	err = s.Call(t.Context(), conn, info, requests, func(text []byte) error {
		if !strings.Contains(string(text), `"csi.v1.Node"`) {
			t.Errorf("answer %s", text)
		}
		answers++
		answered <- struct{}{}
		return nil
	})
	if err != nil || answers != 2 {
		t.Errorf("%d answers, %v", answers, err)
	}

	// Errors of requests and of answer end the call and are returned unchanged.
	mine := errors.New("mine")
	err = s.Call(t.Context(), conn, info, func(context.Context) (proto.Message, error) { return nil, mine }, nil)
	if !errors.Is(err, mine) {
		t.Errorf("the error of requests is %v", err)
	}
	err = s.Call(t.Context(), conn, watch, one(request), func([]byte) error { return mine })
	if !errors.Is(err, mine) {
		t.Errorf("the error of answer is %v", err)
	}
}

// compact removes the spaces that package protojson adds at random.
func compact(text string) string { return strings.ReplaceAll(text, " ", "") }
