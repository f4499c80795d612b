package proxy_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/patchbay-dev/patchbay/proxy"
)

// One socket leads to several plugins: each call says in its metadata which one it is for.
func Example() {
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	// The plugin; the proxy knows nothing of its services.
	plugin := grpc.NewServer()
	healthpb.RegisterHealthServer(plugin, health.NewServer())
	defer plugin.Stop()
	disk := serveAt(filepath.Join(dir, "disk.sock"), plugin)
	defer disk.Close()

	director := proxy.Director(func(ctx context.Context, _ string) (grpc.ClientConnInterface, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		ptype, name, err := proxy.ParseRoute(md)
		if err != nil {
			return nil, err
		}
		if name != "disk" {
			return nil, proxy.CannotCall("plugin "+ptype+"/"+name, fmt.Errorf("there is no such plugin"))
		}
		return proxy.Named(disk, "plugin "+ptype+"/"+name), nil
	})
	server := proxy.NewServer(ctx, director.Forward)
	defer server.Drain()
	caller := serveAt(filepath.Join(dir, "proxy.sock"), server.Server)
	defer caller.Close()

	for _, name := range []string{"disk", "tape"} {
		to := metadata.AppendToOutgoingContext(ctx, proxy.Route("Storage", name)...)
		answer, err := healthpb.NewHealthClient(caller).Check(to, &healthpb.HealthCheckRequest{})
		fmt.Println(answer.GetStatus(), err)
	}
	// Output:
	// SERVING <nil>
	// UNKNOWN rpc error: code = Unavailable desc = cannot call plugin Storage/tape: there is no such plugin
}

// serveAt serves on a socket and returns a connection to it.
func serveAt(path string, server *grpc.Server) *grpc.ClientConn {
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	return conn
}
