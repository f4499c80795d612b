package device

import (
	"cmp"
	"context"
	"fmt"
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
	// boardDir is the name of the directory, inside the plugin directory, in which plugins that registered the older way are announced.
	boardDir = "patchbay-device-plugins"
	// farewell bounds how long the end of an announcement waits for an answer that is on its way.
	farewell = time.Second
)

// CheckDirs returns an error if a handler cannot make its sockets in these directories, which it needs for plugins that register the older
// way: neither directory may contain the other, and the paths must not be too long to connect to.
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

// makeBoard makes the directory of the announcements, without what a host that was killed has left there. All in it is the handler's own.
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

// announcement is the registration socket of a plugin that registered the older way. It answers the pipeline in the plugin's stead.
type announcement struct {
	registerapi.UnimplementedRegistrationServer

	older          *older
	resource, name string
	path           string // of the plugin
	socket         plugin.SocketID
	options        *pluginapi.DevicePluginOptions // of its Register

	serial   uint64 // grows from one announcement to the next
	listener *sock.Listener
	telling  sync.Once
	told     chan struct{} // closed when it is certain what the plugin is told
	refusal  string        // why it is told to be refused, if it is; set before told is closed
	leaving  sync.Once
	leave    chan struct{} // closed when it is to be taken down
}

func (a *announcement) begin() {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRegister), grpc.WaitForHandlers(true))
	registerapi.RegisterRegistrationServer(server, a)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(a.listener) }) // ends with Stop, and with nothing else that could be told
	a.older.running.Go(func() {
		<-a.leave
		timer := time.AfterFunc(farewell, server.Stop)
		server.GracefulStop()
		timer.Stop()
		serving.Wait()
		a.older.mu.Lock()
		delete(a.older.announced, a)
		a.older.mu.Unlock()
	})
}

// takeDown ends the announcement. It does not block.
func (a *announcement) takeDown() { a.leaving.Do(func() { close(a.leave) }) }

// answer returns the error for the plugin's Register: that it was refused, if that is decided already. Later decisions are not sent.
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

// NotifyRegistrationStatus implements registerapi.RegistrationServer. A plugin that hears of its refusal has to register again. One that
// does not, because it registered long ago, stays announced as long as it lives: the pipeline tries again.
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
	if !registered && (hears || a.older.isOutdated(a) || isDead(a.path)) {
		a.takeDown()
	}
	// An earlier announcement at the same endpoint is of this plugin, or of one that has exited.
	a.older.takeDown(func(other *announcement) bool {
		return other.path == a.path && other.serial < a.serial && (registered && other.resource == a.resource || other.socket != a.socket)
	})
	return &registerapi.RegistrationStatusResponse{}, nil
}
