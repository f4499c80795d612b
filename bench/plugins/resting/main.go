// Resting is the floor of a daemon at rest: a server of grpc-go on the Unix socket that its first argument names, with a file of bbolt at
// the second one. It reports that it is ready as a service of systemd does, and runs until it is killed.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "resting:", err)
		os.Exit(1)
	}
}

func run(socket, state string) error {
	db, err := bbolt.Open(state, 0o600, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	notify, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"})
	if err != nil {
		return err
	}
	if _, err := notify.Write([]byte("READY=1")); err != nil {
		return err
	}
	return server.Serve(listener)
}
