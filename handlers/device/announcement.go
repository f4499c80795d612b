package device

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// boardDir is the directory, inside the plugin directory, for the sockets of announcements.
	boardDir = "patchbay-device-plugins"
	// farewell bounds how long the end of an announcement waits for calls in progress.
	farewell = time.Second
)

// CheckDirs returns an error if a handler cannot use these directories as SocketDir and PluginDir: neither may contain the other, and the
// paths of sockets in them must not be too long.
func CheckDirs(socketDir, pluginDir string) error {
	socketDir, socketErr := filepath.Abs(socketDir)
	pluginDir, pluginErr := filepath.Abs(pluginDir)
	if err := cmp.Or(socketErr, pluginErr); err != nil {
		return err
	}
	for _, dirs := range [][2]string{{socketDir, pluginDir}, {pluginDir, socketDir}} {
		if rel, err := filepath.Rel(dirs[0], dirs[1]); err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("directory %s contains directory %s: name two that lie apart", dirs[0], dirs[1])
		}
	}
	const many = "zzzzzz.sock" // the name of a later announcement than any handler makes
	for _, path := range []string{filepath.Join(socketDir, kubeletSocket), filepath.Join(pluginDir, boardDir, many)} {
		if len(path) > sock.MaxPath {
			return fmt.Errorf("the socket %s has %d bytes, and the path of a socket may have %d: choose a shorter directory", path, len(path),
				sock.MaxPath)
		}
	}
	return nil
}

// makeBoard creates an empty directory for announcements. It removes files that a killed host left there.
func makeBoard(pluginDir string) (string, error) {
	dir, err := filepath.Abs(filepath.Join(pluginDir, boardDir))
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("cannot remove what is left of earlier announcements: %w", err)
	}
	if err := os.MkdirAll(pluginDir, 0o750); err != nil {
		return "", fmt.Errorf("cannot create the plugin directory: %w", err)
	}
	// gofail: var deviceBoard string
	// return "", fmt.Errorf("%s", deviceBoard)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot create the directory in which plugins are announced: %w", err)
	}
	return dir, nil
}

// announcement is a registration socket that the handler serves on behalf of a plugin that registered the older way.
type announcement struct {
	registerapi.UnimplementedRegistrationServer

	older    *older
	resource string
	path     string // of the plugin
	socket   plugin.SocketID
	options  *pluginapi.DevicePluginOptions // of its Register

	serial   uint64 // grows from one announcement to the next
	telling  sync.Once
	told     chan struct{} // closed when it is certain what the plugin is told
	refusal  string        // why it is told to be refused, if it is; set before told is closed
	leave    chan struct{} // closed when it is to be taken down
	takeDown func()        // closes leave; calling it again has no effect
}

// serve serves until takeDown is called.
func (a *announcement) serve(listener net.Listener) {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRegister), grpc.WaitForHandlers(true))
	registerapi.RegisterRegistrationServer(server, a)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ends with Stop, and with nothing else that could be told
	<-a.leave
	timer := time.AfterFunc(farewell, server.Stop)
	server.GracefulStop()
	timer.Stop()
	serving.Wait()
	a.older.mu.Lock()
	delete(a.older.announced, a)
	a.older.mu.Unlock()
}

// answer returns the result of the plugin's Register: an error if the pipeline has refused it. A later refusal is not sent to the plugin.
func (a *announcement) answer() error {
	a.telling.Do(func() { close(a.told) })
	if a.refusal != "" {
		return status.Error(codes.FailedPrecondition, a.refusal)
	}
	return nil
}

func (a *announcement) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.DevicePlugin, Name: a.resource, Endpoint: a.path, SupportedVersions: []string{pluginapi.Version},
	}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer. If Register still waits, a refusal is its answer, and the plugin has
// to register again. Otherwise the announcement stays while the plugin lives, and the pipeline retries.
func (a *announcement) NotifyRegistrationStatus(
	_ context.Context, result *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	registered := result.GetPluginRegistered()
	hears := false
	a.telling.Do(func() {
		if !registered {
			a.refusal = cmp.Or(result.GetError(), "it was refused")
		}
		hears = true
		close(a.told)
	})
	again := a.older.matching(func(other *announcement) bool { return other.path == a.path && other.serial > a.serial })
	if !registered && (hears || len(again) > 0 || isDead(a.path)) {
		a.takeDown()
	}
	// An earlier announcement of the same endpoint belongs to this plugin, or to a plugin that has exited.
	a.older.takeDown(func(other *announcement) bool {
		return other.path == a.path && other.serial < a.serial && (registered && other.resource == a.resource || other.socket != a.socket)
	})
	return &registerapi.RegistrationStatusResponse{}, nil
}
