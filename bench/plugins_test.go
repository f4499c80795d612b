package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/bench/internal/manager"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// Plugins is the process in which all plugins of a benchmark run. It serves calls of net/rpc.
type Plugins struct {
	mu      sync.Mutex
	running map[string][]*fake // by name, in the order in which they were made
}

func newPlugins() *Plugins { return &Plugins{running: map[string][]*fake{}} }

// Sockets names sockets: Names in the directory Dir. A socket that is not Staged is bound and listened on in Dir, which makes it visible
// before it is listened on. A Staged one is made in the directory Staging, and moved to Dir when it serves. The plugins behind them serve
// with grpc-go, or are Raw.
type Sockets struct {
	Dir, Staging string
	Names        []string
	Staged, Raw  bool
}

// Appearance says when plugins appeared and when the last of them was told that it is registered, in nanoseconds of [proc.Now].
type Appearance struct {
	Listening, Told int64
}

// Prepare makes plugins serve on staged sockets. With Staging the same as Dir, they are there without having appeared.
func (p *Plugins) Prepare(sockets Sockets, _ *proc.None) error {
	// A table of descriptors that has to grow for connections stops its process for 10 ms. Plugins that are processes have no such table.
	last, err := unix.FcntlInt(uintptr(syscall.Stderr), unix.F_DUPFD_CLOEXEC, 2*len(sockets.Names)+1<<6)
	if err == nil {
		err = unix.Close(last)
	}
	if err != nil {
		return fmt.Errorf("make room for descriptors: %w", err)
	}
	for _, name := range sockets.Names {
		plugin, err := listen(filepath.Join(sockets.Staging, name), sockets.Raw)
		if err != nil {
			return err
		}
		go plugin.serve()
		p.add(name, plugin)
	}
	return nil
}

// Appear makes sockets appear and returns when all their plugins have been told that they are registered. Staged ones have been prepared,
// and take the place of a socket of the same name.
func (p *Plugins) Appear(sockets Sockets, reply *Appearance) error {
	listening, err := proc.Now()
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
		plugin, err := listen(path, sockets.Raw)
		if err != nil {
			return err
		}
		if listening, err = proc.Now(); err != nil {
			return err
		}
		go plugin.serve()
		p.add(name, plugin)
	}
	reply.Listening = listening
	return p.Told(sockets.Names, &reply.Told)
}

// Told waits until plugins have been told that they are registered and says when the last of them was.
func (p *Plugins) Told(names []string, at *int64) error {
	for _, name := range names {
		told := <-p.get(name).told
		if told.err != nil {
			return fmt.Errorf("plugin %s: %w", name, told.err)
		}
		*at = max(*at, told.at)
	}
	return nil
}

// Remove removes sockets, on which plugins go on to serve, and says when it began to.
func (p *Plugins) Remove(sockets Sockets, at *int64) (err error) {
	if *at, err = proc.Now(); err != nil {
		return err
	}
	for _, name := range sockets.Names {
		if err := os.Remove(filepath.Join(sockets.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends plugins of the names.
func (p *Plugins) Stop(names []string, _ *proc.None) error {
	for _, name := range names {
		p.mu.Lock()
		running := p.running[name]
		delete(p.running, name)
		p.mu.Unlock()
		for _, plugin := range running {
			if err := plugin.stop(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Usage says what the process has used so far.
func (p *Plugins) Usage(_ proc.None, usage *proc.Usage) (err error) {
	*usage, err = proc.ReadUsage()
	return err
}

func (p *Plugins) add(name string, plugin *fake) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[name] = append(p.running[name], plugin)
}

// get returns the newest plugin of a name.
func (p *Plugins) get(name string) *fake {
	p.mu.Lock()
	defer p.mu.Unlock()
	running := p.running[name]
	return running[len(running)-1]
}

// fake is a plugin that serves the registration service on one socket.
type fake struct {
	registerapi.UnimplementedRegistrationServer

	name     string
	listener net.Listener
	server   *grpc.Server // nil if it is raw
	told     chan told
}

// told says when a plugin was told its status. The error is that of a refusal.
type told struct {
	at  int64
	err error
}

// listen returns a plugin that listens on a socket and does not serve yet.
func listen(path string, raw bool) (*fake, error) {
	p := &fake{name: filepath.Base(path), told: make(chan told, 1)}
	if !raw {
		p.server = grpc.NewServer()
		registerapi.RegisterRegistrationServer(p.server, p)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	p.listener = listener
	return p, nil
}

func (p *fake) serve() {
	serve := p.serveRaw
	if p.server != nil {
		serve = func() error { return p.server.Serve(p.listener) }
	}
	if err := serve(); err != nil {
		p.tell(told{err: err})
	}
}

func (p *fake) stop() error {
	if p.server == nil {
		return p.listener.Close()
	}
	p.server.Stop()
	return nil
}

// GetInfo implements the registration service.
func (p *fake) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: manager.PluginType, Name: p.name, SupportedVersions: []string{"v1"}}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (p *fake) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	at, err := proc.Now()
	if !status.GetPluginRegistered() {
		err = fmt.Errorf("it was refused: %s", status.GetError())
	}
	p.tell(told{at, err})
	return &registerapi.RegistrationStatusResponse{}, nil
}

// tell keeps the first status; a benchmark in which there are more is broken in ways that show elsewhere.
func (p *fake) tell(t told) {
	select {
	case p.told <- t:
	default:
	}
}
