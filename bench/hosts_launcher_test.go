package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// launchedType is the type that plugins/sdk announces.
const launchedType = "LaunchedPlugin"

// launcherHost is the whole road of a launched plugin: [launcher.Launcher] starts it and keeps it running, the pipeline of
// [patchbay.Runtime] finds and registers it, and it is dispensed on a shared connection.
type launcherHost struct {
	launch.Incomplete

	rt       *patchbay.Runtime
	units    map[string]launcher.Plugin
	shutdown func() error
	// configured is how many plugins there are when the first is launched, which are all started by the first call; zero for plugins that
	// are started at once.
	configured int
}

// openOnDemand is for plugins that are started by the first call, of which n are configured.
func openOnDemand(n int) launch.Opener {
	open := openLauncher(false)
	return func(dir string) (launch.Host, error) {
		opened, err := open(dir)
		if h, is := opened.(*launcherHost); is {
			h.configured = n
		}
		return opened, err
	}
}

func openLauncher(durable bool, more ...dynamicplugins.Option) launch.Opener {
	return func(dir string) (launch.Host, error) {
		cfg := patchbay.Config{PluginDirs: []string{filepath.Join(dir, "plugins")}, RegistryOptions: append(more,
			dynamicplugins.WithConnDispenser(launchedType, func(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
				return v1beta1.NewExampleClient(conn), nil
			}),
		)}
		closeState := func() error { return nil }
		if durable {
			state, err := boltstate.Open(filepath.Join(dir, "state.db"))
			if err != nil {
				return nil, err
			}
			cfg.State, closeState = state, state.Close
		}
		rt, err := patchbay.New(cfg)
		if err != nil {
			return nil, err
		}
		rt.AddHandler(launchedType, patchbay.AcceptHandler())
		ctx, cancel := context.WithCancel(context.Background())
		ran := make(chan error, 1)
		go func() { ran <- rt.Run(ctx) }()
		select {
		case <-rt.Ready():
		case err := <-ran:
			cancel()
			return nil, err
		}
		return &launcherHost{rt: rt, units: map[string]launcher.Plugin{}, shutdown: func() error {
			cancel()
			return errors.Join(<-ran, closeState())
		}}, nil
	}
}

// Launch implements [launch.Host].
func (h *launcherHost) Launch(program, name string) (launch.Plugin, error) {
	if err := h.configure(program, name); err != nil {
		return nil, err
	}
	for configured := range h.units {
		if _, err := h.rt.Registry().WaitForPlugin(context.Background(), launchedType, configured); err != nil {
			return nil, err
		}
	}
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](h.rt.Registry(), launchedType, name)
	if err != nil {
		return nil, err
	}
	return launchedPlugin{client, h, name}, call(context.Background(), client)
}

// configure has the host launch a program.
func (h *launcherHost) configure(program, name string) error {
	first := len(h.units) == 0
	h.units[name] = h.unit(program, name)
	for i := 1; first && i < h.configured; i++ {
		idle := fmt.Sprintf("plugin-%d", i+1)
		h.units[idle] = h.unit(program, idle)
	}
	return h.set()
}

func (h *launcherHost) unit(program, name string) launcher.Plugin {
	p := launcher.Plugin{Spec: host.Spec{Name: name, Args: []string{program, name}}}
	if h.configured > 0 {
		p.OnDemand = true
		p.Announce = plugin.Info{Type: launchedType, Name: name, Versions: []string{"1"}}
	}
	return p
}

func (h *launcherHost) set() error {
	return h.rt.Launcher().Set(slices.Collect(maps.Values(h.units)))
}

// Rest implements [launch.Host]. The health of a plugin is asked for soon after its first call.
func (h *launcherHost) Rest() error {
	for slices.ContainsFunc(h.rt.Launcher().Plugins(), func(s plugin.LaunchStatus) bool {
		return s.State == plugin.StateRunning && s.ServingStatus == "unknown"
	}) {
		time.Sleep(10 * time.Millisecond) // no event tells that a plugin is healthy from its beginning
	}
	return nil
}

// Close implements [launch.Host].
func (h *launcherHost) Close() error { return h.shutdown() }

type launchedPlugin struct {
	client v1beta1.ExampleClient
	host   *launcherHost
	name   string
}

// Call implements [launch.Plugin].
func (p launchedPlugin) Call(ctx context.Context) error { return call(ctx, p.client) }

// Stop implements [launch.Plugin].
func (p launchedPlugin) Stop() error {
	watching, cancel := context.WithCancel(context.Background())
	defer cancel()
	registry := p.host.rt.Registry()
	_, changes := registry.Watch(watching, launchedType)
	if err := p.host.rt.Launcher().Stop(p.name); err != nil {
		return err
	}
	delete(p.host.units, p.name)
	if err := p.host.set(); err != nil {
		return err
	}
	for len(registry.Instances(launchedType, p.name)) > 0 {
		<-changes
	}
	return nil
}
