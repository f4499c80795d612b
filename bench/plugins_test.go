package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// pluginType is the type that the plugins announce.
const pluginType = "BenchPlugin"

// Plugins is the process in which all plugins of a benchmark run. It serves calls of net/rpc.
type Plugins struct {
	mu      sync.Mutex
	running map[string]*plugin // by name
}

func newPlugins() *Plugins { return &Plugins{running: map[string]*plugin{}} }

// Sockets names sockets: Names in the directory Dir. A socket that is not Staged is bound and listened on in Dir, which makes it visible
// before it is listened on. A Staged one is made in the directory Staging, and moved to Dir when it serves.
type Sockets struct {
	Dir, Staging string
	Names        []string
	Staged       bool
}

// Appearance says when plugins appeared and when the last of them was told that it is registered, in nanoseconds of [now].
type Appearance struct {
	Listening, Told int64
}

// Prepare makes plugins serve on staged sockets.
func (p *Plugins) Prepare(sockets Sockets, _ *None) error {
	for _, name := range sockets.Names {
		plugin, err := listen(filepath.Join(sockets.Staging, name))
		if err != nil {
			return err
		}
		go plugin.serve()
		p.add(name, plugin)
	}
	return nil
}

// Appear makes sockets appear and returns when all their plugins have been told that they are registered. Staged ones have been prepared.
func (p *Plugins) Appear(sockets Sockets, reply *Appearance) error {
	listening, err := now()
	if err != nil {
		return err
	}
	for _, name := range sockets.Names {
		path := filepath.Join(sockets.Dir, name)
		if sockets.Staged {
			if err := os.Rename(filepath.Join(sockets.Staging, name), path); err != nil {
				return err
			}
			continue
		}
		plugin, err := listen(path)
		if err != nil {
			return err
		}
		if listening, err = now(); err != nil {
			return err
		}
		go plugin.serve()
		p.add(name, plugin)
	}
	reply.Listening = listening
	for _, name := range sockets.Names {
		told := <-p.get(name).told
		if told.err != nil {
			return fmt.Errorf("plugin %s: %w", name, told.err)
		}
		reply.Told = max(reply.Told, told.at)
	}
	return nil
}

// Vanish ends plugins: their sockets are removed, then they stop serving.
func (p *Plugins) Vanish(sockets Sockets, _ *None) error {
	for _, name := range sockets.Names {
		if err := os.Remove(filepath.Join(sockets.Dir, name)); err != nil {
			return err
		}
		p.get(name).server.Stop()
		p.remove(name)
	}
	return nil
}

func (p *Plugins) add(name string, plugin *plugin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[name] = plugin
}

func (p *Plugins) get(name string) *plugin {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running[name]
}

func (p *Plugins) remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, name)
}

// plugin serves the registration service on one socket.
type plugin struct {
	registerapi.UnimplementedRegistrationServer

	name     string
	listener net.Listener
	server   *grpc.Server
	told     chan told
}

// told says when a plugin was told its status. The error is that of a refusal.
type told struct {
	at  int64
	err error
}

// listen returns a plugin that listens on a socket and does not serve yet.
func listen(path string) (*plugin, error) {
	p := &plugin{name: filepath.Base(path), server: grpc.NewServer(), told: make(chan told, 1)}
	registerapi.RegisterRegistrationServer(p.server, p)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	p.listener = listener
	return p, nil
}

func (p *plugin) serve() {
	if err := p.server.Serve(p.listener); err != nil {
		p.tell(told{err: err})
	}
}

// GetInfo implements the registration service.
func (p *plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: pluginType, Name: p.name, SupportedVersions: []string{"v1"}}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (p *plugin) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	at, err := now()
	if !status.GetPluginRegistered() {
		err = fmt.Errorf("it was refused: %s", status.GetError())
	}
	p.tell(told{at, err})
	return &registerapi.RegistrationStatusResponse{}, nil
}

// tell keeps the first status; a benchmark in which there are more is broken in ways that show elsewhere.
func (p *plugin) tell(t told) {
	select {
	case p.told <- t:
	default:
	}
}
