package reflection

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	library "google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// serve returns a connection to a server that describes itself so.
func serve(t *testing.T, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	s, listener := grpc.NewServer(), bufconn.Listen(1<<16)
	healthpb.RegisterHealthServer(s, healthpb.UnimplementedHealthServer{})
	register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		<-served
	})
	return conn
}

// ask sends requests over one stream of a service, and returns the answers until there is an error.
func ask(t *testing.T, conn *grpc.ClientConn, service string, requests []*reflectionv1.ServerReflectionRequest) (
	answers []*reflectionv1.ServerReflectionResponse, err error,
) {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &reflectionv1.ServerReflection_ServiceDesc.Streams[0], "/"+service+"/ServerReflectionInfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range requests {
		_ = stream.SendMsg(request) // the answer has the error
		answer := &reflectionv1.ServerReflectionResponse{}
		if err := stream.RecvMsg(answer); err != nil {
			return answers, err
		}
		answers = append(answers, answer)
	}
	return answers, stream.CloseSend()
}

// TestAnswers compares the answers with those of gRPC's own service: only the words of an error are others, and who asks again for a file
// gets it again.
func TestAnswers(t *testing.T) {
	file := func(path string) *reflectionv1.ServerReflectionRequest {
		return &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: path}}
	}
	symbol := func(name string) *reflectionv1.ServerReflectionRequest {
		return &reflectionv1.ServerReflectionRequest{
			Host: "h", MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name},
		}
	}
	extension := func(of string, number int32) *reflectionv1.ServerReflectionRequest {
		return &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingExtension{
			FileContainingExtension: &reflectionv1.ExtensionRequest{ContainingType: of, ExtensionNumber: number},
		}}
	}
	extensions := func(of string) *reflectionv1.ServerReflectionRequest {
		return &reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_AllExtensionNumbersOfType{AllExtensionNumbersOfType: of},
		}
	}
	const options = "google.protobuf.FeatureSet"
	requests := []*reflectionv1.ServerReflectionRequest{
		{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}},
		symbol("grpc.health.v1.Health"), symbol("grpc.health.v1.Health.Check"), symbol("grpc.health.v1.HealthCheckResponse.ServingStatus"),
		symbol("grpc.reflection.v1.ServerReflection"), symbol("grpc.reflection.v1alpha.ServerReflection"), symbol("there.is.None"), symbol(""),
		file("grpc/health/v1/health.proto"), file("google/protobuf/go_features.proto"), file("google/protobuf/descriptor.proto"), file("none.proto"),
		extensions(options), extensions("google.protobuf.FileOptions"), extensions("grpc.health.v1.HealthCheckRequest"), extensions("none"),
		extension(options, 1002), extension(options, 7), extension("none", 1),
	}
	ours, theirs := serve(t, Register), serve(t, func(s *grpc.Server) { library.Register(s) })
	for _, service := range []string{Service, reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName} {
		for _, request := range requests { // each with a stream of its own, as they say no file twice
			got, err := ask(t, ours, service, []*reflectionv1.ServerReflectionRequest{request})
			if err != nil {
				t.Fatal(err)
			}
			want, err := ask(t, theirs, service, []*reflectionv1.ServerReflectionRequest{request})
			if err != nil {
				t.Fatal(err)
			}
			compare(t, request, got[0], want[0])
		}
		all, err := ask(t, ours, service, append(requests, &reflectionv1.ServerReflectionRequest{}, file("none.proto")))
		if len(all) != len(requests) || status.Code(err) != codes.InvalidArgument {
			t.Errorf("a request of nothing is answered with %v, after %d answers", err, len(all))
		}
		if files := all[8].GetFileDescriptorResponse().GetFileDescriptorProto(); len(files) != 1 {
			t.Errorf("a file that the client has, and asks for, comes with %d", len(files))
		}
	}
}

func compare(t *testing.T, request *reflectionv1.ServerReflectionRequest, got, want *reflectionv1.ServerReflectionResponse) {
	t.Helper()
	if got.GetErrorResponse() != nil && want.GetErrorResponse() != nil {
		got.GetErrorResponse().ErrorMessage = want.GetErrorResponse().GetErrorMessage()
	}
	files := func(answer *reflectionv1.ServerReflectionResponse) (read []*descriptorpb.FileDescriptorProto) {
		for _, raw := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
			file := &descriptorpb.FileDescriptorProto{}
			if err := proto.Unmarshal(raw, file); err != nil {
				t.Fatal(err)
			}
			read = append(read, plain(file))
		}
		return read
	}
	gotFiles, wantFiles := files(got), files(want)
	if len(gotFiles) != len(wantFiles) {
		t.Fatalf("%v is answered with %d files, want %d", request, len(gotFiles), len(wantFiles))
	}
	for i := range wantFiles {
		if !proto.Equal(gotFiles[i], wantFiles[i]) {
			t.Errorf("%v is answered with\n%v\nwant\n%v", request, gotFiles[i], wantFiles[i])
		}
	}
	if len(wantFiles) > 0 {
		got.GetFileDescriptorResponse().FileDescriptorProto = want.GetFileDescriptorResponse().GetFileDescriptorProto()
	}
	if !proto.Equal(got, want) {
		t.Errorf("%v is answered with\n%v\nwant\n%v", request, got, want)
	}
}
