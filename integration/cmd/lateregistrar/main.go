//go:build unix

// Lateregistrar serves the kubelet's registration service on a socket file that exists for a while before anyone listens on it. Every
// server on a Unix socket goes through this state, usually for microseconds; here it lasts as long as it is told to.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	socket := flag.String("socket", "", "path of the registration socket")
	name := flag.String("name", "", "name of the plugin")
	delay := flag.Duration("delay", 0, "time between bind and listen")
	flag.Parse()
	if err := run(context.Background(), *socket, *name, *delay); err != nil {
		fmt.Fprintln(os.Stderr, "lateregistrar:", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM or the end of ctx.
func run(ctx context.Context, path, name string, delay time.Duration) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	listener, late, err := listenLate(path, delay)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, &registrar{name: name, listening: time.Now(), late: late})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// A listener made from a file does not remove it.
	err = os.Remove(path)
	server.Stop()
	return errors.Join(err, <-served)
}

// listenLate binds a socket and listens on it after a delay, which a busy machine makes longer.
func listenLate(path string, delay time.Duration) (l net.Listener, late time.Duration, err error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, 0, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	bound := time.Now()
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		return nil, 0, err
	}
	<-time.After(delay) //nolint:forbidigo // to be late is what it is for
	if err := syscall.Listen(fd, syscall.SOMAXCONN); err != nil {
		return nil, 0, err
	}
	late = time.Since(bound)
	l, err = net.FileListener(file)
	return l, late, err
}

type registrar struct {
	registerapi.UnimplementedRegistrationServer

	name      string
	listening time.Time
	late      time.Duration
}

func (r *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: r.name, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus prints the status, how long after listen(2) it came, and how long that was after bind(2).
func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	fmt.Printf("told registered=%t error=%q after=%v late=%v\n", status.PluginRegistered, status.Error, time.Since(r.listening), r.late)
	return &registerapi.RegistrationStatusResponse{}, nil
}
