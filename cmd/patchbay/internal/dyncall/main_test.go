package dyncall

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// node is a CSI node service.
type node struct{ csi.UnimplementedNodeServer }

func (node) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	id := "node-1"
	if md, _ := metadata.FromIncomingContext(ctx); len(md["tenant"]) > 0 {
		id = md["tenant"][0]
	}
	return &csi.NodeGetInfoResponse{NodeId: id}, nil
}

func (node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if r.VolumeCapability.GetMount().GetFsType() != "ext4" || r.VolumeContext["any.key"] != "v" {
		return nil, status.Error(codes.InvalidArgument, "no ext4")
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (node) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	st, err := status.New(codes.FailedPrecondition, "busy\x1b[2J").WithDetails(&errdetails.ErrorInfo{Reason: "MOUNTED", Domain: "example.com"})
	if err != nil {
		return nil, err
	}
	return nil, st.Err()
}

// serve starts a server with the node and health services, and returns a connection to it.
func serve(t *testing.T, register ...func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "dyn") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterNodeServer(server, node{})
	healthpb.RegisterHealthServer(server, health.NewServer())
	for _, r := range register {
		r(server)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	conn, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// one returns the only request of a call.
func one(request proto.Message) Requests {
	return func(context.Context) (proto.Message, error) { return request, nil }
}

// call calls a method as the command does, with one JSON request, and returns the answers.
func call(ctx context.Context, s *Schema, conn grpc.ClientConnInterface, selector, request string) ([]string, error) {
	method, err := s.Method(selector)
	if err != nil {
		return nil, err
	}
	message, err := s.Request(method, []byte(request), 1)
	if err != nil {
		return nil, err
	}
	var answers []string
	err = s.Call(ctx, conn, method, one(message), func(text []byte) error {
		answers = append(answers, string(text))
		return nil
	})
	return answers, err
}

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
