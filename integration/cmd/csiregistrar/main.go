// Csiregistrar registers a CSI driver that is a process of its own, as the sidecar does that Kubernetes has for it: it asks the driver for
// its name, serves the registration service in the plugin directory with the driver's socket as endpoint, prints the registration
// statuses that it is told, and ends when it is told of a refusal.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	endpoint := flag.String("csi-address", "", "path of the socket of the driver")
	dir := flag.String("registrar-dir", "", "directory of the registration socket")
	flag.Parse()
	if err := run(context.Background(), *endpoint, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "csiregistrar:", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM or a refusal.
func run(ctx context.Context, endpoint, dir string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	name, err := driverName(ctx, endpoint)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of one that was killed
		return err
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, &registration{name: name, endpoint: endpoint, refused: cancel})
	context.AfterFunc(ctx, server.GracefulStop)
	if err := server.Serve(listener); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func driverName(ctx context.Context, endpoint string) (string, error) {
	conn, err := grpc.NewClient("unix:"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	return info.GetName(), errors.Join(err, conn.Close())
}

type registration struct {
	registerapi.UnimplementedRegistrationServer
	name, endpoint string
	refused        context.CancelCauseFunc
}

func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registration) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	fmt.Printf("told registered=%t error=%q\n", status.GetPluginRegistered(), status.GetError())
	if !status.GetPluginRegistered() {
		r.refused(fmt.Errorf("registration refused: %s", status.GetError()))
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
