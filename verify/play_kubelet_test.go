//go:build linux

package verify

import (
	"context"
	"errors"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// playDevicePlugin runs a device plugin that registers on kubelet.sock, and breaks the named rule about that.
func playDevicePlugin(rule string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dir := os.Getenv("PATCHBAY_PLUGIN_DIR")
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return err
	}
	for ctx.Err() == nil {
		server, err := serveDevices(ctx, dir, rule)
		if err != nil {
			return err
		}
		for again := false; !again && ctx.Err() == nil; {
			select {
			case event := <-watcher.Events:
				again = rule != "KUB002" && event.Has(fsnotify.Create) && filepath.Base(event.Name) == runner.KubeletSocket
			case <-ctx.Done():
			}
		}
		server.Stop()
		if rule == "exits" && ctx.Err() == nil {
			return errors.New("the kubelet is another one")
		}
	}
	return nil
}

// serveDevices serves and registers.
func serveDevices(ctx context.Context, dir, rule string) (*grpc.Server, error) {
	path := filepath.Join(dir, "dp.sock")
	living, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return nil, errors.Join(errors.New("another instance serves"), living.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	request := &deviceapi.RegisterRequest{Version: "v1beta1", Endpoint: "dp.sock", ResourceName: "example.com/a"}
	switch rule {
	case "KUB001":
		request.Endpoint = "./dp.sock"
	case "escapes":
		request.Endpoint = "../dp.sock"
	case "unserved":
		request.Endpoint = "other.sock"
	}
	server := newFake(registerapi.DevicePlugin).newServer()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, runner.KubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := deviceapi.NewRegistrationClient(conn).Register(ctx, request); rule == "" && err != nil {
		return nil, err
	}
	return server, nil
}
