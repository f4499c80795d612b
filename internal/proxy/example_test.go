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

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/proxy"
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

	// The plugin; the proxy does not know its services.
	plugin := grpc.NewServer()
	healthpb.RegisterHealthServer(plugin, health.NewServer())
	defer plugin.Stop()
	socket := filepath.Join(dir, "disk.sock")
	serveAt(socket, plugin)

	registry, err := dynamicplugins.Open(nil, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer registry.Shutdown()
	err = registry.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: "Storage", Name: "disk", AllocID: "1", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: socket},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	director := proxy.Director(func(ctx context.Context, _ string) (grpc.ClientConnInterface, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		ptype, name, err := proxy.ParseRoute(md)
		if err != nil {
			return nil, err
		}
		conn, err := registry.Conn(ctx, ptype, name)
		if err != nil {
			return nil, proxy.CallError("plugin "+ptype+"/"+name, err)
		}
		return proxy.Named(conn, "plugin "+ptype+"/"+name), nil
	})
	server := proxy.NewServer(ctx, director.Forward, proxy.ServerConfig{})
	defer server.Drain()
	path := filepath.Join(dir, "proxy.sock")
	serveAt(path, server)
	caller, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer caller.Close()

	for _, name := range []string{"disk", "tape"} {
		to := metadata.AppendToOutgoingContext(ctx, proxy.Route("Storage", name)...)
		answer, err := healthpb.NewHealthClient(caller).Check(to, &healthpb.HealthCheckRequest{})
		fmt.Println(answer.GetStatus(), err)
	}
	// Output:
	// SERVING <nil>
	// UNKNOWN rpc error: code = Unavailable desc = cannot call plugin Storage/tape: plugin tape for type Storage not found
}

// serveAt serves on a socket.
func serveAt(path string, server interface{ Serve(l net.Listener) error }) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	go func() { _ = server.Serve(listener) }()
}
