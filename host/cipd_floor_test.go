//go:build unix

package host

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/cipd"
)

// BenchmarkCIPDAdmissionsFloor is the floor of BenchmarkCIPDAdmissions: the same plugin with a bare gRPC server that does nothing but
// look at the ticket, send checks and count answers.
func BenchmarkCIPDAdmissionsFloor(b *testing.B) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	const window = 10000
	room, left, done := make(chan struct{}, window), atomic.Int64{}, make(chan struct{})
	started := make(chan struct{})
	left.Store(int64(b.N))
	ticket := func(ctx context.Context) error {
		if v := metadata.ValueFromIncomingContext(ctx, cipd.TicketKey); len(v) != 1 || v[0] != "t" {
			return status.Error(codes.PermissionDenied, "wrong ticket")
		}
		return nil
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "cipd.plugin.Admissions",
		Methods: []grpc.MethodDesc{{
			MethodName: "ResolveAdmission",
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				if err := decode(new(cipdv1.ResolveAdmissionRequest)); err != nil {
					return nil, err
				}
				<-room
				if left.Add(-1) == 0 {
					close(done)
				}
				return &emptypb.Empty{}, ticket(ctx)
			},
		}},
		Streams: []grpc.StreamDesc{{StreamName: "ListAdmissions", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			if err := ticket(stream.Context()); err != nil {
				return err
			}
			<-started
			instance, err := cipd.ParseInstanceID(filePin("x").InstanceID)
			for i := range b.N {
				if err == nil {
					room <- struct{}{}
					err = stream.SendMsg(&cipdv1.Admission{
						AdmissionId: fmt.Sprint(i), ServiceUrl: "https://packages.example", Package: fmt.Sprintf("infra/tools/patchbay/%d", i), Instance: instance,
					})
				}
			}
			<-stream.Context().Done()
			return err
		}}},
	}, nil)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), modeEnv+"=cipd all")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	line, _ := json.Marshal(map[string]any{"port": l.Addr().(*net.TCPAddr).Port, "ticket": "t"})
	_, _ = in.Write(append(line, '\n'))
	b.ReportAllocs()
	b.ResetTimer()
	close(started)
	<-done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "checks/s")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	server.Stop()
	<-served
}
