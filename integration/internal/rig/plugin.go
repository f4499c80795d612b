package rig

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// Plugin is a plugin in this process.
type Plugin struct {
	registerapi.UnimplementedRegistrationServer

	// Type, Name, Version and Path are what it announces, and where its socket is.
	Type, Name, Version, Path string
	// Born is when its socket appeared.
	Born time.Time
	// Told gets when it was first told that it is registered, and Refused why it was first told that it is not.
	Told    chan time.Time
	Refused chan string

	server *grpc.Server
	ended  chan struct{}
}

// Serve starts a plugin, which also serves the example service; more adds others and may be nil. The socket takes the place of one at the
// path.
func Serve(pluginType, name, version, path string, more func(*grpc.Server)) (*Plugin, error) {
	// Bound out of sight, so that it appears in one step, serving.
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	p := &Plugin{
		Type: pluginType, Name: name, Version: version, Path: path,
		Told: make(chan time.Time, 1), Refused: make(chan string, 1), ended: make(chan struct{}),
		// Buffers of a size that thousands can have.
		server: grpc.NewServer(grpc.ReadBufferSize(1024), grpc.WriteBufferSize(1024)),
	}
	registerapi.RegisterRegistrationServer(p.server, p)
	v1beta1.RegisterExampleServer(p.server, Example(version))
	healthpb.RegisterHealthServer(p.server, health.NewServer())
	if more != nil {
		more(p.server)
	}
	go func() {
		defer close(p.ended)
		_ = p.server.Serve(listener) // it ends with Stop
	}()
	p.Born = time.Now()
	if err := os.Rename(hidden, path); err != nil {
		p.server.Stop()
		return nil, errors.Join(err, os.Remove(hidden))
	}
	return p, nil
}

// Stop ends the plugin. Its socket goes first, unless a later one has taken the place.
func (p *Plugin) Stop(replaced bool) error {
	var err error
	if !replaced {
		err = os.Remove(p.Path)
	}
	p.server.Stop()
	<-p.ended
	return err
}

// GetInfo implements the registration service.
func (p *Plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: p.Type, Name: p.Name, SupportedVersions: []string{p.Version}}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (p *Plugin) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	if status.GetPluginRegistered() {
		select {
		case p.Told <- time.Now():
		default: // told before
		}
	} else {
		select {
		case p.Refused <- status.GetError():
		default: // refused before
		}
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// Example returns the example service that answers with a word.
func Example(word string) v1beta1.ExampleServer { return example{word: word} }

type example struct {
	v1beta1.UnimplementedExampleServer

	word string
}

// GetExampleInfo implements the example service.
func (e example) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{Error: e.word}, nil
}

// Ask returns the word of the example service.
func Ask(ctx context.Context, conn grpc.ClientConnInterface, options ...grpc.CallOption) (string, error) {
	answer, err := v1beta1.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{}, options...)
	return answer.GetError(), err
}
