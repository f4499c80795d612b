package controlapi

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcmetadata "google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/usertest"
)

// TestReflection uses reflection on the control socket with each role.
func TestReflection(t *testing.T) {
	listener, path := usertest.Listen(t, 0)
	g := testGuard(path)
	g.Replace(policyFor(config.Roles{
		Read: config.Members{Users: []string{"2001"}}, Operate: config.Members{Users: []string{"2002"}}, Admin: config.Members{Users: []string{"2003"}},
	}))
	l := newLists(1, prometheus.NewCounter(prometheus.CounterOpts{Name: "refused"}), discard)
	s := (&API{Authorizer: g, Logger: discard, lists: l}).Serve(listener, func() { t.Error("the server failed") })
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if n := l.pool.Sum(); n != 0 {
			t.Errorf("%d bytes count after the end", n)
		}
	})
	for uid, want := range map[uint32]string{2001: "ListPlugins", 2002: "ListPlugins RestartPlugin", 2003: "ListPlugins RestartPlugin Reload"} {
		stream := askAs(t, path, uid)
		services := ask(t, stream, &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		var names []string
		for _, service := range services.GetListServicesResponse().GetService() {
			names = append(names, service.GetName())
		}
		if got := strings.Join(names, " "); got != "grpc.reflection.v1.ServerReflection patchbay.v1.ControlService "+
			"patchbay.v1.DeviceService patchbay.v1.FleetService" {
			t.Errorf("user %d sees the services %s", uid, got)
		}
		file := ask(t, stream, &reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "patchbay.v1.ControlService"},
		})
		if n := l.pool.Held(uid); n < proto.Size(file) {
			t.Errorf("%d bytes of the answer count, and it has %d", n, proto.Size(file))
		}
		var methods []string
		for _, text := range file.GetFileDescriptorResponse().GetFileDescriptorProto() {
			var d descriptorpb.FileDescriptorProto
			if err := proto.Unmarshal(text, &d); err != nil {
				t.Fatal(err)
			}
			for _, service := range d.GetService() {
				for _, m := range service.GetMethod() {
					methods = append(methods, m.GetName())
				}
			}
		}
		for _, method := range []string{"ListPlugins", "RestartPlugin", "Reload"} {
			if slices.Contains(methods, method) != slices.Contains(strings.Fields(want), method) {
				t.Errorf("user %d sees %v, and should of the three see %s", uid, methods, want)
			}
		}
		// Other services that are linked into the program must not be listed.
		other := ask(t, stream, &reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "patchbay.plugin.v1.HostService"},
		})
		if other.GetErrorResponse().GetErrorCode() != int32(codes.NotFound) {
			t.Errorf("user %d sees %v", uid, other)
		}
		if uid == 2001 { // a stream is denied after its user has lost the role
			g.Replace(policyFor(config.Roles{Operate: config.Members{Users: []string{"2002"}}, Admin: config.Members{Users: []string{"2003"}}}))
			denied(t, stream)
		}
	}
	denied(t, askAs(t, path, 65534))
	// The control socket as the endpoint of a plugin.
	denied(t, askAs(t, path, 2003, proxy.HopsKey, "1"))
}

// askAs opens a reflection stream as a user.
func askAs(t *testing.T, path string, uid uint32, metadata ...string) reflectionv1.ServerReflection_ServerReflectionInfoClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return usertest.Dial(t, path, uid, 9), nil }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(grpcmetadata.AppendToOutgoingContext(t.Context(), metadata...))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func ask(
	t *testing.T, stream reflectionv1.ServerReflection_ServerReflectionInfoClient, question *reflectionv1.ServerReflectionRequest,
) *reflectionv1.ServerReflectionResponse {
	t.Helper()
	if err := stream.Send(question); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// denied fails the test unless a request is denied.
func denied(t *testing.T, stream reflectionv1.ServerReflection_ServerReflectionInfoClient) {
	t.Helper()
	_ = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	if answer, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %v, %v", answer, err)
	}
}
