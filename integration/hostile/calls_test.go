//go:build linux

package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcmetadata "google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// called is a registered plugin whose services, at an endpoint of their own, answer a call by answer, frame by frame.
func called(answer func(*peer)) func(*attacker) {
	return connected(func(p *peer) {
		settings(p) // without which no client sends its request
		for p.request() {
			answer(p)
		}
	})
}

// connected is a registered plugin whose services, at an endpoint of their own, are what playConn does on each connection.
func connected(playConn func(*peer)) func(*attacker) {
	return func(a *attacker) {
		endpoint := beside(a, "endpoint")
		go peers(playConn)(&attacker{a.dir, endpoint})
		i := info()
		i.Endpoint = endpoint
		must(serveGRPC(listen(a.socket), func() *registerapi.PluginInfo { return i }))
	}
}

// ends is a check that a call through the stable socket, and one through the control socket, end with a code.
func ends(code codes.Code) func(*scene) {
	return func(s *scene) {
		s.Helper()
		control, err := s.client.Conn(hostileType, "hostile")
		if err != nil {
			s.Fatal(err)
		}
		defer control.Close()
		for which, conn := range map[string]*grpc.ClientConn{"stable": s.dial(s.awaitStable()), "control": control} {
			ctx, cancel := context.WithTimeout(s.Context(), deadlineOf(code))
			if err := check(ctx, conn); status.Code(err) != code {
				s.Errorf("a call through the %s socket ends with %v, want %v", which, err, code)
			}
			cancel()
		}
	}
}

// deadlineOf is the deadline of a call that ends with a code: short if that is what ends it.
func deadlineOf(code codes.Code) time.Duration {
	if code == codes.DeadlineExceeded {
		return time.Second
	}
	return patience
}

func callAttacks() []attack {
	const toCaller = "the caller gets the error, and nobody else is affected"
	return []attack{
		{
			name: "call-gigabyte", does: "announces an answer of 1 GB to a call", happens: toCaller, bound: "the caller's own limit; nothing is allocated before that is checked",
			named: event("registered: "), check: ends(codes.ResourceExhausted),
			play: called(func(p *peer) {
				p.start()
				_ = p.WriteData(p.stream, false, []byte{0, 0x40, 0, 0, 0})
			}),
		},
		{
			name: "call-silence", does: "never answers a call", happens: toCaller, bound: "the caller's deadline", named: event("registered: "),
			check: ends(codes.DeadlineExceeded), play: called(func(*peer) {}),
		},
		{
			name: "call-reset", does: "answers a call with GOAWAY and closes the connection", happens: toCaller, bound: "no call is made twice", named: event("registered: "),
			check: ends(codes.Unavailable),
			play: called(func(p *peer) {
				_ = p.WriteGoAway(p.stream, http2.ErrCodeNo, nil)
				_ = p.Close()
			}),
		},
		{
			name: "call-headers", does: "answers a call with 4 MB of headers", happens: toCaller, bound: "1 MiB of metadata", named: event("registered: "),
			check: func(s *scene) {
				if err := check(s.Context(), s.dial(s.awaitStable())); err == nil {
					s.Error("a call succeeds")
				}
			},
			play: called(func(p *peer) {
				kv := []string{":status", "200", "content-type", "application/grpc"}
				for i := range 4 << 20 >> 12 {
					kv = append(kv, fmt.Sprintf("x-%d", i), long(4<<10))
				}
				block := p.fields(kv...)
				_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream, BlockFragment: block[:16<<10]})
				for block = block[16<<10:]; len(block) > 0; {
					n := min(len(block), 16<<10)
					_ = p.WriteContinuation(p.stream, n == len(block), block[:n])
					block = block[n:]
				}
			}),
		},
		{
			name: "call-deaf", does: "takes each call, goes away, and reads nothing more of its 900 KiB of metadata", happens: "connections without calls end; the next call is made on another one", bound: "2 connections that only have calls to end, and 5 s for one without calls",
			named: event("registered: "), check: sendsToTheDeaf,
			play: connected(func(p *peer) {
				settings(p)
				if p.headersBegin() {
					_ = p.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
					select {}
				}
			}),
		},
		{
			name: "call-stream", does: "answers a call with a stream that does not end", happens: "the caller has what it reads; nothing is collected for one that does not read", bound: "the windows of the call",
			named: event("registered: "), check: streams,
			play: func(a *attacker) {
				registerAnd(a, grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
					for answer := (&healthpb.HealthCheckRequest{Service: long(64 << 10)}); ; {
						if err := stream.SendMsg(answer); err != nil {
							return err
						}
					}
				}))
			},
		},
		{
			name: "call-large", does: "answers 16 callers, who read nothing for a while, with 100 MiB each", happens: "they have what they read; the plugin waits", bound: "1 MiB for a call, 16 MiB for a user and 48 MiB in all",
			named: event("registered: "), play: answersLarge, check: func(s *scene) { rig.CallLarge(s.T, s.awaitStable(), nil, 16, 1, func() { s.newcomer() }) },
		},
		{
			name: "reflection-bomb", does: "lists 100,000 services by reflection", happens: "patchbay call says so and ends", bound: "1,000 services",
			named: event("registered: "),
			check: func(s *scene) {
				for _, args := range [][]string{{"--list"}, {"x.Y/Z"}} {
					if out := s.patchbay(append([]string{"call", hostileType + "/hostile"}, args...)...); len(out) > 4<<10 || !strings.Contains(out, "services") {
						s.Errorf("patchbay call %q prints %d bytes: %.300s", args, len(out), out)
					}
				}
			},
			play: announces(func(*attacker, *registerapi.PluginInfo) {}, func(s *grpc.Server) { reflectionpb.RegisterServerReflectionServer(s, bomb{}) }),
		},
		{
			name: "connection-flood", does: "(a consumer) opens 300 connections to a stable socket and sends nothing", happens: "they are accepted, and their descriptors are released when they end", bound: "one descriptor each",
			check: floods,
		},
	}
}

// registerAnd serves a plugin with more options.
func registerAnd(a *attacker, options ...grpc.ServerOption) {
	server := grpc.NewServer(options...)
	registerapi.RegisterRegistrationServer(server, &registration{says: info})
	must(server.Serve(listen(a.socket)))
}

// streams calls a stream without end, reads some of it, and leaves more streams unread.
func streams(s *scene) {
	s.Helper()
	conn := s.dial(s.awaitStable())
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	for i := range 8 {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/hostile.Stream/Watch")
		if err != nil {
			s.Fatal(err)
		}
		if err := stream.SendMsg(&healthpb.HealthCheckRequest{}); err != nil {
			s.Fatal(err)
		}
		for range 1 + i%2*200 {
			if err := stream.RecvMsg(&healthpb.HealthCheckRequest{}); err != nil {
				s.Fatal(err)
			}
		}
	}
}

// sendsToTheDeaf makes one call after the other, each with more metadata than the kernel keeps. Each ends before the next begins.
func sendsToTheDeaf(s *scene) {
	s.Helper()
	conn := s.dial(s.awaitStable())
	for range 2 * moreDescriptors {
		ctx, cancel := context.WithTimeout(s.Context(), 200*time.Millisecond)
		ctx = grpcmetadata.AppendToOutgoingContext(ctx, "large", long(900<<10))
		if err := check(ctx, conn); status.Code(err) != codes.DeadlineExceeded {
			s.Errorf("a call ends with %v", err)
		}
		cancel()
	}
}

// floods opens many connections, and closes them.
func floods(s *scene) {
	s.Helper()
	const many = 300
	before := s.usage().descriptors
	var conns []io.Closer
	for range many {
		conn, err := net.Dial("unix", s.stable("Neighbour", "found"))
		if err != nil {
			s.Fatal(err)
		}
		conns = append(conns, conn)
	}
	s.newcomer()
	for _, c := range conns {
		_ = c.Close()
	}
	s.await("the descriptors are given back", func() bool { return s.usage().descriptors <= before+moreDescriptors })
}

// bomb lists too many services.
type bomb struct {
	reflectionpb.UnimplementedServerReflectionServer
}

var services = sync.OnceValue(func() *reflectionpb.ServerReflectionResponse_ListServicesResponse {
	list := &reflectionpb.ListServiceResponse{}
	for i := range 100_000 {
		list.Service = append(list.Service, &reflectionpb.ServiceResponse{Name: fmt.Sprintf("hostile.S%d", i)})
	}
	return &reflectionpb.ServerReflectionResponse_ListServicesResponse{ListServicesResponse: list}
})

func (bomb) ServerReflectionInfo(stream reflectionpb.ServerReflection_ServerReflectionInfoServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(&reflectionpb.ServerReflectionResponse{MessageResponse: services()}); err != nil {
			return err
		}
	}
}
