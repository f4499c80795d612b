package bench

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// hosts are the contestants that launch plugins, except the peers.
var hosts = map[string]launch.Opener{
	"bare":            openBare,
	"bare-socketpair": openBareSocketpair,
	"host":            openHost,
	"host-ticket":     openTicket,
	"host-socketpair": openHostSocketpair,
	"launcher":        openLauncher(false),
	"launcher-state":  openLauncher(true),
	"configured-5":    openOnDemand(5),
	"configured-500":  openOnDemand(500),
}

// pluginOf is the folder of the program that a contestant launches.
var pluginOf = map[string]string{
	"bare":            "plugins/bare",
	"bare-socketpair": "plugins/socketpair",
	"host":            "plugins/sdk",
	"host-ticket":     "plugins/ticket",
	"host-socketpair": "plugins/socketpair",
	"launcher":        "plugins/sdk",
	"configured-5":    "plugins/sdk",
	"configured-500":  "plugins/sdk",
	"launcher-state":  "plugins/sdk",
	goPlugin:          "goplugin/plugin",
	goPluginMTLS:      "goplugin/plugin",
	"ttrpc":           "ttrpc/plugin",
}

// The contestants of the module goplugin.
const (
	goPlugin     = "go-plugin"
	goPluginMTLS = "go-plugin-mtls"
)

// hostGrace is how long plugins may take to end.
const hostGrace = 10 * time.Second

func newHost() (*host.Host, error) {
	h := new(host.Host)
	err := h.Initialize(plugin.Config{})
	return h, err
}

func closeHost(h *host.Host) error {
	ctx, cancel := context.WithTimeout(context.Background(), hostGrace)
	defer cancel()
	h.Close(ctx)
	return ctx.Err()
}

// launchSpec launches a plugin and returns what ends it.
func launchSpec(h *host.Host, spec host.Spec) (stop func() error, err error) {
	p, err := h.Launch(context.Background(), spec)
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := p.Terminate(context.Background()); !errors.Is(err, host.ErrTerminated) {
			return err
		}
		return nil
	}, nil
}

// socketHost launches plugins with [host.Host] and dials them as soon as their sockets are there, without the pipeline that would find
// them.
type socketHost struct {
	launch.Incomplete

	host    *host.Host
	dir     string
	watcher *fsnotify.Watcher
}

func openHost(dir string) (launch.Host, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(dir); err != nil {
		return nil, err
	}
	h, err := newHost()
	return socketHost{host: h, dir: dir, watcher: watcher}, err
}

// Launch implements [launch.Host].
func (h socketHost) Launch(program, name string) (launch.Plugin, error) {
	socket := filepath.Join(h.dir, name+".sock")
	stop, err := launchSpec(h.host, host.Spec{Name: name, Args: []string{program, name}, PluginSocket: socket})
	if err != nil {
		return nil, err
	}
	if err := h.await(socket); err != nil {
		return nil, err
	}
	d, err := dial(socket)
	if err != nil {
		return nil, err
	}
	return socketPlugin{d, stop}, nil
}

// await waits until a socket is there. It serves then: package sdk moves it there.
func (h socketHost) await(socket string) error {
	for {
		select {
		case event := <-h.watcher.Events:
			if event.Name == socket && event.Has(fsnotify.Create) {
				return nil
			}
		case err := <-h.watcher.Errors:
			return err
		}
	}
}

// Close implements [launch.Host].
func (h socketHost) Close() error { return errors.Join(closeHost(h.host), h.watcher.Close()) }

type socketPlugin struct {
	dialled
	stop func() error
}

// Stop implements [launch.Plugin].
func (p socketPlugin) Stop() error { return errors.Join(p.conn.Close(), p.stop()) }

// ticketHost launches plugins that call a service of the host.
type ticketHost struct {
	launch.Incomplete

	host *host.Host
}

func openTicket(string) (launch.Host, error) {
	h, err := newHost()
	return ticketHost{host: h}, err
}

// Launch implements [launch.Host].
func (h ticketHost) Launch(program, name string) (launch.Plugin, error) {
	service := called{calls: make(chan struct{}, 1)}
	stop, err := launchSpec(h.host, host.Spec{
		Name: name, Args: []string{program, name}, Controller: &host.Controller{
			Services: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, service) },
		},
	})
	if err != nil {
		return nil, err
	}
	<-service.calls
	return ticketPlugin{stop: stop}, nil
}

// Close implements [launch.Host].
func (h ticketHost) Close() error { return closeHost(h.host) }

// called is a service of the host that says when it is called.
type called struct {
	v1beta1.UnimplementedExampleServer
	calls chan struct{}
}

// GetExampleInfo implements [v1beta1.ExampleServer].
func (c called) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	c.calls <- struct{}{}
	return &v1beta1.ExampleResponse{}, nil
}

type ticketPlugin struct {
	launch.Incomplete

	stop func() error
}

// Stop implements [launch.Plugin].
func (p ticketPlugin) Stop() error { return p.stop() }
