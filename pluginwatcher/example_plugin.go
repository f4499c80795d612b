package pluginwatcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta2"
)

const (
	// exampleStopTimeout bounds how long Stop waits for calls that are in progress.
	exampleStopTimeout = 10 * time.Second
	// exampleMode is the mode of the socket of an example plugin: only root and its own user may connect.
	exampleMode = 0o755
	// exampleBacklog is the number of unread statuses that an example plugin keeps, and of events that an example handler keeps per plugin.
	exampleBacklog = 64
)

// examplePlugin is a plugin in the process that creates it. It serves the registration service and selected example services. All methods
// are safe for concurrent use.
type examplePlugin struct {
	registerapi.UnimplementedRegistrationServer

	pluginName         string
	pluginType         string
	endpoint           string
	versions           []string
	registrationStatus chan *registerapi.RegistrationStatus

	mu   sync.Mutex
	stop func() error // nil while the plugin does not serve
}

// NewExamplePlugin returns an example plugin without a socket. Its type is "ExamplePlugin", its name "example-plugin", and it announces
// both versions of the example service. The caller registers it with a grpc.Server as the registration service; Serve returns an error.
func NewExamplePlugin() *examplePlugin {
	return NewTestExamplePlugin("example-plugin", "ExamplePlugin", "", "v1beta1", "v1beta2")
}

// NewTestExamplePlugin returns an example plugin that announces the given name, type, endpoint and versions. The endpoint is also the path
// of the socket that Serve creates. Values are not checked, so that tests can announce invalid ones.
func NewTestExamplePlugin(pluginName string, pluginType string, endpoint string, advertisedVersions ...string) *examplePlugin {
	return &examplePlugin{
		pluginName:         pluginName,
		pluginType:         pluginType,
		endpoint:           endpoint,
		versions:           slices.Clone(advertisedVersions),
		registrationStatus: make(chan *registerapi.RegistrationStatus, exampleBacklog),
	}
}

// GetInfo implements the registration service.
func (e *examplePlugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type:              e.pluginType,
		Name:              e.pluginName,
		Endpoint:          e.endpoint,
		SupportedVersions: e.versions,
	}, nil
}

// NotifyRegistrationStatus implements the registration service. It sends the status to [examplePlugin.Statuses] and does not block.
func (e *examplePlugin) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	sendDroppingOldest(e.registrationStatus, status)
	return &registerapi.RegistrationStatusResponse{}, nil
}

// Statuses returns a channel that receives each registration status, in order. It buffers the newest 64, and is never closed.
func (e *examplePlugin) Statuses() <-chan *registerapi.RegistrationStatus {
	return e.registrationStatus
}

// Serve creates the plugin's socket and serves the registration service and the named example services ("v1beta1", "v1beta2") on it, in the
// background, until Stop. When the socket appears, the plugin already listens. It replaces an existing socket. Serve returns an error if
// there is a file of another kind, or the plugin already serves.
func (e *examplePlugin) Serve(services ...string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		return fmt.Errorf("cannot serve example plugin %q: it serves already, call Stop first", e.pluginName)
	}
	grpcServer := grpc.NewServer()
	registerapi.RegisterRegistrationServer(grpcServer, e)
	for _, service := range services {
		switch service {
		case "v1beta1":
			v1beta1.RegisterExampleServer(grpcServer, exampleV1beta1{})
		case "v1beta2":
			v1beta2.RegisterExampleServer(grpcServer, exampleV1beta2{})
		default:
			return fmt.Errorf("cannot serve example plugin %q: unknown service %q, known are v1beta1 and v1beta2", e.pluginName, service)
		}
	}
	var err error
	if e.stop, err = startExampleServer(grpcServer, e.endpoint); err != nil {
		return fmt.Errorf("cannot serve example plugin %q: %w", e.pluginName, err)
	}
	return nil
}

// Stop removes the socket, if it is still that of Serve, and stops serving. It waits for calls in progress for at most 10 s, then cancels
// them and returns an error. Stop without Serve does nothing. Serve may be called again after Stop.
func (e *examplePlugin) Stop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	stop := e.stop
	e.stop = nil
	if stop == nil {
		return nil
	}
	if err := stop(); err != nil {
		return fmt.Errorf("cannot stop example plugin %q cleanly: %w", e.pluginName, err)
	}
	return nil
}

// startExampleServer serves on a new socket at path until stop is called. stop blocks until the server has stopped.
func startExampleServer(server *grpc.Server, path string) (stop func() error, err error) {
	if path == "" {
		return nil, errors.New("it has no endpoint, make it with NewTestExamplePlugin")
	}
	socket, err := sock.Place(context.Background(), path, exampleMode, func(*net.UnixConn) error { return nil })
	if err != nil {
		return nil, err
	}
	if err := socket.Commit(context.Background()); err != nil { // the replaced socket is not needed any more
		return nil, errors.Join(err, socket.Close())
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(socket) }()
	return func() error {
		_, removeErr := socket.Withdraw(context.Background())
		var stopErr error
		timer := time.AfterFunc(exampleStopTimeout, server.Stop)
		server.GracefulStop()
		if !timer.Stop() {
			stopErr = fmt.Errorf("calls were still in progress after %v and were cut off", exampleStopTimeout)
		}
		serveErr := <-served
		if errors.Is(serveErr, grpc.ErrServerStopped) {
			serveErr = nil // stop was called before Serve began
		}
		return errors.Join(removeErr, stopErr, serveErr)
	}, nil
}

type exampleV1beta1 struct {
	v1beta1.UnimplementedExampleServer
}

func (exampleV1beta1) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{}, nil
}

type exampleV1beta2 struct {
	v1beta2.UnimplementedExampleServer
}

func (exampleV1beta2) GetExampleInfo(context.Context, *v1beta2.ExampleRequest) (*v1beta2.ExampleResponse, error) {
	return &v1beta2.ExampleResponse{}, nil
}

// sendDroppingOldest sends a value without blocking. If the channel is full, it drops the oldest value.
func sendDroppingOldest[T any](ch chan T, value T) {
	for {
		select {
		case ch <- value:
			return
		default:
		}
		select {
		case <-ch:
		default:
		}
	}
}
