package dyncall

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

// liar is a reflection service with the answers of a test. Names without an answer are not found.
type liar struct {
	reflectionv1.UnimplementedServerReflectionServer
	services []string
	symbol   func(name string) [][]byte
	file     func(name string) [][]byte
	raw      *reflectionv1.ServerReflectionResponse // the answer to all requests
	hangs    bool
}

func (l liar) ServerReflectionInfo(stream reflectionv1.ServerReflection_ServerReflectionInfoServer) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if l.hangs {
			<-stream.Context().Done()
			return nil
		}
		answer := l.raw
		if answer == nil {
			answer = l.answer(request)
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (l liar) answer(request *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
	var files [][]byte
	switch r := request.MessageRequest.(type) {
	case *reflectionv1.ServerReflectionRequest_ListServices:
		listed := &reflectionv1.ListServiceResponse{}
		for _, name := range l.services {
			listed.Service = append(listed.Service, &reflectionv1.ServiceResponse{Name: name})
		}
		return &reflectionv1.ServerReflectionResponse{
			MessageResponse: &reflectionv1.ServerReflectionResponse_ListServicesResponse{ListServicesResponse: listed},
		}
	case *reflectionv1.ServerReflectionRequest_FileContainingSymbol:
		if l.symbol != nil {
			files = l.symbol(r.FileContainingSymbol)
		}
	case *reflectionv1.ServerReflectionRequest_FileByFilename:
		if l.file != nil {
			files = l.file(r.FileByFilename)
		}
	}
	if files == nil {
		return &reflectionv1.ServerReflectionResponse{MessageResponse: &reflectionv1.ServerReflectionResponse_ErrorResponse{
			ErrorResponse: &reflectionv1.ErrorResponse{ErrorCode: int32(codes.NotFound), ErrorMessage: "none"},
		}}
	}
	return &reflectionv1.ServerReflectionResponse{MessageResponse: &reflectionv1.ServerReflectionResponse_FileDescriptorResponse{
		FileDescriptorResponse: &reflectionv1.FileDescriptorResponse{FileDescriptorProto: files},
	}}
}

// thing is the file of the service x.Thing with one method, which takes and returns x.M, with these imports.
func thing(t *testing.T, imports ...string) *descriptorpb.FileDescriptorProto {
	t.Helper()
	return &descriptorpb.FileDescriptorProto{
		Name: proto.String("thing.proto"), Package: proto.String("x"), Syntax: proto.String("proto3"), Dependency: imports,
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("M"), Field: []*descriptorpb.FieldDescriptorProto{{
			Name: proto.String("self"), Number: proto.Int32(1), JsonName: proto.String("self"), TypeName: proto.String(".x.M"),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(),
		}}}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Thing"), Method: []*descriptorpb.MethodDescriptorProto{{
			Name: proto.String("Do"), InputType: proto.String(".x.M"), OutputType: proto.String(".x.M"),
		}}}},
	}
}

func empty(t *testing.T, name string, imports ...string) []byte {
	t.Helper()
	return mustMarshal(t, &descriptorpb.FileDescriptorProto{Name: proto.String(name), Syntax: proto.String("proto3"), Dependency: imports})
}

func TestHostileReflection(t *testing.T) {
	one := func(files ...[]byte) func(string) [][]byte { return func(string) [][]byte { return files } }
	x := []string{"x.Thing"}
	broken := thing(t)
	broken.MessageType[0].Field[0].TypeName = proto.String(".x.Missing")
	public := thing(t, "gone.proto", "google/protobuf/wrappers.proto")
	public.PublicDependency = []int32{0, 1}
	doubled := thing(t)
	doubled.Name = proto.String("doubled.proto")
	badName := thing(t)
	badName.MessageType[0].Name = proto.String("\x1b[2J")
	for name, c := range map[string]struct {
		liar
		want string // the error; empty for none
	}{
		"cycle": {liar{services: x, symbol: one(mustMarshal(t, thing(t, "b.proto"))), file: func(string) [][]byte {
			return [][]byte{empty(t, "b.proto", "thing.proto")}
		}}, "cyclic import path"},
		"itself": {liar{services: x, symbol: one(mustMarshal(t, thing(t, "thing.proto")))}, "cyclic import path"},
		"other file than asked": {liar{services: x, symbol: one(mustMarshal(t, thing(t, "a.proto"))), file: func(name string) [][]byte {
			return [][]byte{empty(t, "other.proto", name+"x")}
		}}, ""},
		"many imports":         {liar{services: x, symbol: one(empty(t, "thing.proto", strings.Split(strings.Repeat("y", 2000), "")...))}, "more than 1000 files"},
		"many services":        {liar{services: make([]string, 1001)}, "lists 1001 services"},
		"malformed name":       {liar{services: []string{"x.\x1b[2J"}}, `malformed name "x.\x1b[2J"`},
		"long name":            {liar{services: []string{strings.Repeat("x", 1000)}}, "malformed name"},
		"large":                {liar{services: x, symbol: one(make([]byte, 5<<20))}, "larger than max"},
		"garbage":              {liar{services: x, symbol: one([]byte{0xff, 0xff})}, "service x.Thing: proto:"},
		"no such service":      {liar{services: x, symbol: one(empty(t, "thing.proto"))}, ""},
		"a message as service": {liar{services: []string{"x.M"}, symbol: one(mustMarshal(t, thing(t)))}, "x.M, which is not a service"},
		"missing type":         {liar{services: x, symbol: one(mustMarshal(t, broken))}, "x.Missing"},
		"malformed type name":  {liar{services: x, symbol: one(mustMarshal(t, badName))}, "service x.Thing: proto:"},
		"declared twice":       {liar{services: x, symbol: one(mustMarshal(t, thing(t, "doubled.proto")), mustMarshal(t, doubled))}, "name conflict"},
		"other answer":         {liar{raw: &reflectionv1.ServerReflectionResponse{}}, "cannot list its services"},
		"error answer": {liar{raw: &reflectionv1.ServerReflectionResponse{MessageResponse: &reflectionv1.ServerReflectionResponse_ErrorResponse{
			ErrorResponse: &reflectionv1.ErrorResponse{ErrorCode: 13, ErrorMessage: "oh"},
		}}}, "code = Internal desc = oh"},
		"unused import missing": {liar{services: x, symbol: one(mustMarshal(t, public))}, ""},
		"not described":         {liar{services: x}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn := serve(t, func(s *grpc.Server) { reflectionv1.RegisterServerReflectionServer(s, c.liar) })
			s, err := Load(t.Context(), conn, "", nil)
			if c.want == "" {
				if err != nil || len(s.Services)+len(s.Undescribed) != 1 {
					t.Fatalf("got %v, %v", s, err)
				}
				if name == "unused import missing" {
					if _, err := s.Describe("Do"); err != nil {
						t.Error(err)
					}
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if !errors.Is(err, errReflection) && status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%v is not distinguished", err)
			}
		})
	}
}

// TestManyAnswers loads files that import another file, without end, from a server with small or large files.
func TestManyAnswers(t *testing.T) {
	for filler, most := range map[string]int{"": maxFiles, strings.Repeat("x", 3<<20): 6} {
		n := 0
		conn := serve(t, func(s *grpc.Server) {
			reflectionv1.RegisterServerReflectionServer(s, liar{
				services: []string{"x.Thing"}, symbol: func(string) [][]byte { return [][]byte{mustMarshal(t, thing(t, "f0"))} },
				file: func(name string) [][]byte {
					n++
					p := &descriptorpb.FileDescriptorProto{
						Name: &name, Dependency: []string{fmt.Sprint("f", n)}, Options: &descriptorpb.FileOptions{GoPackage: &filler},
					}
					return [][]byte{mustMarshal(t, p)}
				},
			})
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := Load(ctx, conn, "", nil); !errors.Is(err, errReflection) || n > most {
			t.Errorf("after %d answers: %v", n, err)
		}
	}
}

func TestSilentReflection(t *testing.T) {
	conn := serve(t, func(s *grpc.Server) { reflectionv1.RegisterServerReflectionServer(s, liar{hangs: true}) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Load(ctx, conn, "", nil); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
}

// TestSlowDescriptors: Load returns when its context ends, even if the descriptors are still being checked. Two public imports in each of
// 40 files take years; here the check waits instead, so that it ends with the test.
func TestSlowDescriptors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release := make(chan struct{})
	defer close(release)
	conn := direct{liar{services: []string{"x.Thing"}, symbol: func(string) [][]byte {
		cancel()
		<-release
		return nil
	}}}
	if _, err := Load(ctx, conn, "", nil); status.Code(err) != codes.Canceled {
		t.Errorf("Load returned %v", err)
	}
}

// FuzzLink loads files with arbitrary bytes. Load returns an error, or the services can be described.
func FuzzLink(f *testing.F) {
	raw, err := proto.Marshal(thing(&testing.T{}, "google/protobuf/wrappers.proto"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Load(t.Context(), direct{liar{services: []string{"x.Thing"}, symbol: func(string) [][]byte { return [][]byte{raw} }}}, "", nil)
		if err != nil {
			return
		}
		_, _ = s.Describe("x.Thing")
		_, _ = s.Describe("Do")
	})
}

// direct is a connection to a reflection service in this process. It has no other service and uses no socket.
type direct struct{ liar }

func (direct) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errors.ErrUnsupported
}

func (d direct) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return &directStream{liar: d.liar}, nil
}

type directStream struct {
	grpc.ClientStream
	liar    liar
	request *reflectionv1.ServerReflectionRequest
}

func (s *directStream) CloseSend() error { return nil }

func (s *directStream) SendMsg(m any) error {
	s.request, _ = m.(*reflectionv1.ServerReflectionRequest)
	return nil
}

func (s *directStream) RecvMsg(m any) error {
	answer, _ := m.(*reflectionv1.ServerReflectionResponse)
	proto.Merge(answer, s.liar.answer(s.request))
	return nil
}

// TestRefusedReflection: a refused call is not repeated, because the daemon counts and logs each refusal.
func TestRefusedReflection(t *testing.T) {
	refused := &refusal{}
	conn := serve(t, func(s *grpc.Server) { reflectionv1.RegisterServerReflectionServer(s, refused) })
	if _, err := Load(t.Context(), conn, "", nil); status.Code(err) != codes.PermissionDenied || refused.calls.Load() != 1 {
		t.Errorf("after %d calls: %v", refused.calls.Load(), err)
	}
}

type refusal struct {
	reflectionv1.UnimplementedServerReflectionServer
	calls atomic.Int32
}

func (r *refusal) ServerReflectionInfo(reflectionv1.ServerReflection_ServerReflectionInfoServer) error {
	r.calls.Add(1)
	return status.Error(codes.PermissionDenied, "no")
}
