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
	// exampleMode is the mode of the socket of an example plugin: root and its own user may connect.
	exampleMode = 0o755
	// exampleBacklog is the number of unread statuses that an example plugin keeps, and of events that an example handler keeps per plugin.
	exampleBacklog = 64
)

// examplePlugin is a plugin in the process that makes it: the registration service, and the example services it is told to offer.
// All methods are safe for concurrent use.
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

// NewExamplePlugin returns an example plugin without a socket: type "ExamplePlugin", name "example-plugin", both versions of
// the example service. It is a registration server to be registered with a grpc.Server of the caller's; its own Serve fails.
func NewExamplePlugin() *examplePlugin {
	return NewTestExamplePlugin("example-plugin", "ExamplePlugin", "", "v1beta1", "v1beta2")
}

// NewTestExamplePlugin returns an example plugin that announces the given name, type and versions. The endpoint is the path of
// its socket, which it also announces; Serve makes it. Any values are accepted, so that a test can announce what is wrong.
func NewTestExamplePlugin(pluginName string, pluginType string, endpoint string, advertisedVersions ...string) *examplePlugin {
	return &examplePlugin{
		pluginName:         pluginName,
		pluginType:         pluginType,
		endpoint:           endpoint,
		versions:           slices.Clone(advertisedVersions),
		registrationStatus: make(chan *registerapi.RegistrationStatus, exampleBacklog),
	}
}

// GetInfo answers with what the plugin announces. It implements the registration service.
func (e *examplePlugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type:              e.pluginType,
		Name:              e.pluginName,
		Endpoint:          e.endpoint,
		SupportedVersions: e.versions,
	}, nil
}

// NotifyRegistrationStatus passes the status on to [examplePlugin.Statuses]. It never blocks: if nobody reads them, the oldest is
// dropped for the newest. It implements the registration service.
func (e *examplePlugin) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	sendDroppingOldest(e.registrationStatus, status)
	return &registerapi.RegistrationStatusResponse{}, nil
}

// Statuses delivers each registration status that the plugin was told, in order. It keeps the newest 64 that nobody has read, and
// is never closed.
func (e *examplePlugin) Statuses() <-chan *registerapi.RegistrationStatus {
	return e.registrationStatus
}

// Serve makes the plugin's socket and serves on it, in the background, the registration service and the named example services
// ("v1beta1", "v1beta2"), until Stop. The socket appears at its path with the plugin already listening, and takes the place of
// a socket that is there; anything else there is an error, and so is a plugin that serves already.
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

// Stop removes the socket, if it is still the one that Serve made, and ends the service. Calls in progress have 10 s to end; what
// is left then is cut off and Stop returns an error. Stop without Serve does nothing. Serve may follow Stop.
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

// startExampleServer serves on a new socket at path until stop, which waits for the end.
func startExampleServer(server *grpc.Server, path string) (stop func() error, err error) {
	if path == "" {
		return nil, errors.New("it has no endpoint, make it with NewTestExamplePlugin")
	}
	socket, err := sock.Place(context.Background(), path, exampleMode, func(*net.UnixConn) error { return nil })
	if err != nil {
		return nil, err
	}
	if err := socket.Commit(context.Background()); err != nil { // whose place it took does not get it back
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
			serveErr = nil // Stop came before the serving goroutine had begun.
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

// sendDroppingOldest sends without blocking, at the price of the oldest unread value.
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
