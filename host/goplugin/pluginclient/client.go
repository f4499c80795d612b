// Package pluginclient moves hosts that were written for github.com/hashicorp/go-plugin: [NewClient] takes what the library's own NewClient
// takes and returns a client with the same methods, whose plugin is launched by a runtime of Patchbay: registered, logged, started again
// when it ends, and gone with its host.
//
// What is dispensed belongs to one life of the plugin. Whoever dispenses again after the plugin was started again gets it from the new one.
// Plugins that speak net/rpc are refused.
package pluginclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	library "github.com/hashicorp/go-plugin"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/launcher"
)

const (
	// pluginType is what plugins are registered as, and name the name of the one that a client has.
	pluginType = "GoPlugin"
	name       = "plugin"
	// defaultStart is how long a plugin may take by default until it is registered.
	defaultStart = time.Minute
)

// Client is a plugin and the runtime that it is launched by. Its methods are those of the library's client, and safe for concurrent use.
type Client struct {
	config      *library.ClientConfig
	connections goplugin.Connections

	starting sync.Once
	startErr error
	attached *library.Client // to a plugin that somebody else has started; nil for others
	runtime  *patchbay.Runtime
	dir      string
	stop     context.CancelFunc
	ended    chan error
	killing  sync.Once
}

// managed are the clients that [CleanupClients] ends.
var managed struct {
	sync.Mutex

	clients []*Client
}

// NewClient returns a client for a plugin, which is started by the first call that needs it, or by Start. The configuration must not be
// changed any more.
func NewClient(config *library.ClientConfig) *Client {
	c := &Client{config: config}
	if config.Managed {
		managed.Lock()
		defer managed.Unlock()
		managed.clients = append(managed.clients, c)
	}
	return c
}

// CleanupClients ends the plugins of all clients that are Managed, and waits for that.
func CleanupClients() {
	managed.Lock()
	clients := managed.clients
	managed.clients = nil
	managed.Unlock()
	var killing sync.WaitGroup
	for _, c := range clients {
		killing.Go(c.Kill)
	}
	killing.Wait()
}

// Start starts the plugin, waits until it is registered, and returns where it serves. Later calls return the same error or the address of
// the life that the plugin has then.
func (c *Client) Start() (net.Addr, error) {
	c.starting.Do(func() {
		if c.startErr = c.start(); c.startErr != nil {
			c.killing.Do(c.end)
		}
	})
	if c.startErr != nil {
		return nil, c.startErr
	}
	client, err := c.current()
	if err != nil {
		return nil, err
	}
	return client.Start() // which has started, and says where
}

func (c *Client) start() error {
	if !slices.Contains(c.config.AllowedProtocols, library.ProtocolGRPC) {
		return errors.New("plugins that speak net/rpc are not offered; serve gRPC, and allow it with AllowedProtocols")
	}
	if c.config.Reattach != nil {
		return c.attach()
	}
	unit, err := c.unit()
	if err != nil {
		return err
	}
	if c.dir, err = os.MkdirTemp("", "pbplugin"); err != nil {
		return err
	}
	c.runtime, err = patchbay.New(patchbay.Config{
		PluginDirs: []string{c.dir},
		RegistryOptions: []dynamicplugins.Option{
			dynamicplugins.WithDialer(c.connections.Dial), dynamicplugins.WithDialOptionsFor(c.connections.DialOptions),
		},
	})
	if err != nil {
		return err
	}
	c.runtime.AddHandler(pluginType, patchbay.AcceptHandler())
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.ended = cancel, make(chan error, 1)
	go func() { c.ended <- c.runtime.Run(ctx) }()
	if err := c.runtime.Launcher().Set([]launcher.Plugin{unit}); err != nil {
		return err
	}
	if err := c.runtime.Launcher().Start(name); err != nil {
		return err
	}
	waiting, cancelWait := context.WithTimeout(ctx, max(c.config.StartTimeout, defaultStart))
	defer cancelWait()
	_, err = c.runtime.Registry().WaitForPlugin(waiting, pluginType, name)
	return err
}

// unit is how the plugin is launched.
func (c *Client) unit() (launcher.Plugin, error) {
	cmd := c.config.Cmd
	switch {
	case cmd == nil || cmd.Path == "":
		return launcher.Plugin{}, errors.New("no program is to be started; set Cmd or Reattach")
	case cmd.Err != nil:
		return launcher.Plugin{}, cmd.Err
	case c.config.RunnerFunc != nil || len(cmd.ExtraFiles) > 0 || cmd.SysProcAttr != nil:
		return launcher.Plugin{}, errors.New("a runner, further files and process attributes are not offered; use the launcher for them")
	}
	unit := launcher.Plugin{
		Spec:  host.Spec{Name: name, Args: append([]string{cmd.Path}, cmd.Args[min(1, len(cmd.Args)):]...), Dir: cmd.Dir, Env: cmd.Env},
		Serve: true, Manual: true,
		Protocol: &goplugin.Plugin{
			CookieKey: c.config.MagicCookieKey, CookieValue: c.config.MagicCookieValue, ProtocolVersions: c.versions(),
			Type: pluginType, Name: name, AutoMTLS: c.config.AutoMTLS, Connections: &c.connections, Config: c.config,
		},
	}
	if !c.config.SkipHostEnv {
		unit.Env = append(slices.Clone(unit.Env), os.Environ()...)
	}
	if strings.ContainsRune(cmd.Path, filepath.Separator) {
		path, err := filepath.Abs(cmd.Path)
		if err != nil {
			return unit, err
		}
		unit.Args[0] = path
	}
	if c.config.SecureConfig == nil {
		return unit, nil
	}
	digest, err := checkedDigest(c.config.SecureConfig, unit.Args[0])
	unit.SHA256 = digest
	return unit, err
}

// versions are those of the configuration.
func (c *Client) versions() []int {
	var versions []int
	for v := range c.config.VersionedPlugins {
		versions = append(versions, v)
	}
	if own := int(c.config.ProtocolVersion); c.config.Plugins != nil && !slices.Contains(versions, own) {
		versions = append(versions, own)
	}
	slices.Sort(versions)
	return versions
}

// attach uses a plugin that somebody else has started. It is not launched, watched or started again.
func (c *Client) attach() error {
	c.attached = library.NewClient(c.config)
	_, err := c.attached.Client()
	return err
}

// current returns the library's client of the present life. It waits while the plugin is started again.
func (c *Client) current() (*library.Client, error) {
	if c.attached != nil {
		return c.attached, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(c.config.StartTimeout, defaultStart))
	defer cancel()
	events := c.runtime.Events(ctx, 0)
	for {
		info, err := c.runtime.Registry().WaitForPlugin(ctx, pluginType, name)
		if err != nil {
			return nil, fmt.Errorf("the plugin is not registered: %w", err)
		}
		if client := c.connections.Client(info.ConnectionInfo.SocketPath); client != nil && !client.Exited() {
			return client, nil
		}
		if _, open := <-events; !open { // its end is known, and not registered yet
			return nil, fmt.Errorf("the plugin has ended: %w", ctx.Err())
		}
	}
}

// Client starts the plugin if need be and returns what dispenses. It stays usable when the plugin is started again.
func (c *Client) Client() (library.ClientProtocol, error) {
	if _, err := c.Start(); err != nil {
		return nil, err
	}
	return protocol{c}, nil
}

// protocol implements [library.ClientProtocol] on whichever life the plugin has.
type protocol struct{ client *Client }

func (p protocol) on(do func(library.ClientProtocol) error) error {
	current, err := p.client.current()
	if err != nil {
		return err
	}
	connected, err := current.Client()
	if err != nil {
		return err
	}
	return do(connected)
}

// Dispense implements [library.ClientProtocol].
func (p protocol) Dispense(plugin string) (dispensed any, err error) {
	err = p.on(func(c library.ClientProtocol) error {
		dispensed, err = c.Dispense(plugin)
		return err
	})
	return dispensed, err
}

// Ping implements [library.ClientProtocol].
func (p protocol) Ping() error { return p.on(library.ClientProtocol.Ping) }

// Close implements [library.ClientProtocol]: it ends the plugin.
func (p protocol) Close() error {
	p.client.Kill()
	return nil
}

// Kill ends the plugin and what belongs to it, and waits for that. More than once is once.
func (c *Client) Kill() {
	c.starting.Do(func() { c.startErr = errors.New("the plugin was killed before it was started") })
	c.killing.Do(c.end)
}

func (c *Client) end() {
	if c.attached != nil {
		connected, _ := c.attached.Client() // what is not connected has nothing to close
		if client, ok := connected.(*library.GRPCClient); ok && c.config.Reattach.Test {
			_ = client.Conn.Close() // which the library leaves open, as it leaves the server running
		}
		c.attached.Kill()
	}
	if c.stop != nil {
		c.stop()
		if err := <-c.ended; err != nil && c.config.Logger != nil {
			c.config.Logger.Warn("the runtime of the plugin failed", "error", err)
		}
	}
	if c.dir != "" {
		_ = os.RemoveAll(c.dir) // it is empty but for what a killed plugin left
	}
}

// Exited reports whether the plugin has ended and is not to be started again.
func (c *Client) Exited() bool {
	if c.attached != nil {
		return c.attached.Exited()
	}
	if c.runtime == nil {
		return false
	}
	all := c.runtime.Launcher().Plugins()
	return len(all) == 0 || slices.Contains([]launcher.State{launcher.StateFailed, launcher.StateStopped}, all[0].State)
}

// of asks the present life something, and returns the zero value if there is none.
func of[T any](c *Client, ask func(*library.Client) T) (zero T) {
	if c.attached == nil && c.runtime == nil {
		return zero
	}
	current, err := c.current()
	if err != nil {
		return zero
	}
	return ask(current)
}

// ID returns the number of the process; empty without one.
func (c *Client) ID() string { return of(c, (*library.Client).ID) }

// NegotiatedVersion returns the version that the plugin chose.
func (c *Client) NegotiatedVersion() int { return of(c, (*library.Client).NegotiatedVersion) }

// Protocol returns what the plugin speaks, which is gRPC.
func (c *Client) Protocol() library.Protocol { return of(c, (*library.Client).Protocol) }

// ReattachConfig returns how the present life can be attached to by another client of this process or another one.
func (c *Client) ReattachConfig() *library.ReattachConfig {
	return of(c, (*library.Client).ReattachConfig)
}
