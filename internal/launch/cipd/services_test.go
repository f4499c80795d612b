package cipd

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// admissions is a host that sends one good check and one with a pin that is none, and takes answers when it may.
type admissions struct {
	pluginv1.UnimplementedAdmissionsServer
	hello chan *pluginv1.Hello
	read  chan struct{} // closed when answers are read
	got   chan *pluginv1.Resolution
}

func (a *admissions) Admit(stream pluginv1.Admissions_AdmitServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	a.hello <- first.GetHello()
	err = stream.Send(&pluginv1.AdmitResponse{Admissions: []*pluginv1.Admission{
		{Id: 1, ServiceUrl: "url", Pin: &pluginv1.Pin{PackageName: "good", InstanceId: fileID("good")}},
		{Id: 2, ServiceUrl: "url", Pin: &pluginv1.Pin{PackageName: "bad", InstanceId: "bad"}},
	}})
	if err != nil {
		return err
	}
	<-a.read
	for {
		request, err := stream.Recv()
		if err != nil {
			return status.Error(codes.Aborted, "over")
		}
		for _, r := range request.GetResolutions() {
			a.got <- r
		}
	}
}

// fileID is the instance ID of a file with this content.
func fileID(content string) string {
	digest := sha256.Sum256([]byte(content))
	return encoding.EncodeToString(append(digest[:], 2))
}

// serve serves the services over TCP and returns a connection to them.
func serve(t *testing.T, a pluginv1.AdmissionsServer) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	server.RegisterService(&AdmissionsDesc, NewAdmissions(a))
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(l) })
	c, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		server.Stop()
		served.Wait()
	})
	return c
}

func resolve(ctx context.Context, c *grpc.ClientConn, id string) error {
	return c.Invoke(ctx, "/cipd.plugin.Admissions/ResolveAdmission", &cipdv1.ResolveAdmissionRequest{AdmissionId: id}, &emptypb.Empty{})
}

func TestAdmissions(t *testing.T) {
	const answers = 4 * maxResolutions
	a := &admissions{hello: make(chan *pluginv1.Hello, 1), read: make(chan struct{}), got: make(chan *pluginv1.Resolution, answers)}
	c := serve(t, a)
	if err := resolve(t.Context(), c, "1"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an answer before any question: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/cipd.plugin.Admissions/ListAdmissions")
	if err == nil {
		err = stream.SendMsg(&cipdv1.ListAdmissionsRequest{ProtocolVersion: 7, PluginVersion: "v"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if hello := <-a.hello; hello.GetProtocolVersion() != 7 || hello.GetPluginVersion() != "v" {
		t.Errorf("the plugin says hello with %v", hello)
	}
	var check cipdv1.Admission
	if err := stream.RecvMsg(&check); err != nil || check.GetAdmissionId() != "1" || check.GetServiceUrl() != "url" || check.GetPackage() != "good" {
		t.Errorf("the check is %v, %v", &check, err)
	}

	// However many answers there are, those that cannot be read yet wait, and none is lost.
	var calls sync.WaitGroup
	for i := range answers - 1 {
		calls.Go(func() {
			if err := resolve(t.Context(), c, strconv.Itoa(i+3)); err != nil {
				t.Error(err)
			}
		})
	}
	close(a.read)
	seen := map[uint64]codes.Code{}
	for range answers {
		r := <-a.got
		seen[r.GetId()] = codes.Code(r.GetCode())
	}
	calls.Wait()
	if len(seen) != answers || seen[2] != codes.InvalidArgument || seen[3] != codes.OK {
		t.Errorf("%d different answers; to the check that cannot be put: %v", len(seen), seen[2])
	}
	cancel()
}

func TestAnswersAfterTheEnd(t *testing.T) {
	a := NewAdmissions(ended{})
	if err := a.listAdmissions(&cipdv1.ListAdmissionsRequest{}, nil); status.Code(err) != codes.Aborted {
		t.Errorf("the end: %v", err)
	}
	for i := range 2 * maxResolutions {
		r := &cipdv1.ResolveAdmissionRequest{AdmissionId: fmt.Sprint(i)}
		if _, err := a.resolveAdmission(t.Context(), r); err != nil {
			t.Fatalf("an answer after the end: %v", err)
		}
	}
}

// ended is a host whose stream ends at once.
type ended struct {
	pluginv1.UnimplementedAdmissionsServer
}

func (ended) Admit(pluginv1.Admissions_AdmitServer) error { return status.Error(codes.Aborted, "over") }
