// Package pluginclient moves hosts that were written for github.com/hashicorp/go-plugin: [NewClient] takes what the library's own NewClient
// takes and returns a client with the same methods, whose plugin is launched by a runtime of Patchbay: registered, logged, restarted when
// it ends, and stopped with its host.
//
// A dispensed value follows the plugin: each call goes to the process that the plugin has when the call begins, and waits while the
// plugin is restarting. A call in flight ends with its process if that crashes, or if it is stopped and the call outlasts the time that a
// stopped plugin is given. The broker and the context that a GRPCPlugin receives belong to one process: dispense again after a restart if
// you use them, or if the plugin now speaks another version. Plugins that speak net/rpc are refused.
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
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/launcher"
)

const (
	// pluginType is what plugins are registered as, and name the name of the one that a client has.
	pluginType = "GoPlugin"
	name       = "plugin"
	// defaultStart is how long a plugin may take by default until it is registered.
	defaultStart = time.Minute
)

// Client is a plugin and the runtime that launches it. Its methods are those of the library's client, and safe for concurrent use.
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

	mu     sync.Mutex
	follow map[int]*grpc.ClientConn // what was dispensed calls on, by the version of the plugin
}

// managed are the clients that [CleanupClients] ends.
var managed struct {
	sync.Mutex

	clients []*Client
}

// NewClient returns a client for a plugin, which is started by the first call that needs it, or by Start. The configuration must not be
// changed afterwards.
func NewClient(config *library.ClientConfig) *Client {
	c := &Client{config: config}
	if config.Managed {
		managed.Lock()
		defer managed.Unlock()
		managed.clients = append(managed.clients, c)
	}
	return c
}

// CleanupClients stops the plugins of all Managed clients, and waits until they have ended.
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

// Start starts the plugin, waits until it is registered, and returns its address. Later calls return the same error, or the address of
// the process that the plugin has by then.
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
	if c.dir, err = os.MkdirTemp(sock.TempDir(room), "pbplugin"); err != nil {
		return err
	}
	c.runtime, err = patchbay.New(patchbay.Config{
		PluginDirs:      []string{c.dir},
		RegistryOptions: []dynamicplugins.Option{dynamicplugins.WithConnections(configured{&c.connections, c.config.GRPCDialOptions})},
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
	waiting, cancelWait := context.WithTimeout(ctx, c.startTimeout())
	defer cancelWait()
	if _, err := c.runtime.Registry().WaitForPlugin(waiting, pluginType, name); err != nil {
		return fmt.Errorf("the plugin is not registered: %w", err)
	}
	return nil
}

// configured are connections with the options of the host's configuration, which come last.
type configured struct {
	*goplugin.Connections
	options []grpc.DialOption
}

// DialOptions implements [dynamicplugins.Connections].
func (c configured) DialOptions(endpoint string) []grpc.DialOption {
	return append(c.Connections.DialOptions(endpoint), c.options...)
}

// room is how much longer than the path of the temporary directory those of the plugin's sockets are, at most.
const room = 70

// startTimeout is how long a life of the plugin may take until it is registered.
func (c *Client) startTimeout() time.Duration { return max(c.config.StartTimeout, defaultStart) }

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
		Spec:   host.Spec{Name: name, Args: append([]string{cmd.Path}, cmd.Args[min(1, len(cmd.Args)):]...), Dir: cmd.Dir, Env: cmd.Env},
		Manual: true, StartTimeout: c.startTimeout(), Restart: launcher.RestartPolicy{Restart: launcher.RestartAlways},
		Protocol: &goplugin.Plugin{
			CookieKey: c.config.MagicCookieKey, CookieValue: c.config.MagicCookieValue, ProtocolVersions: c.versions(),
			Type: pluginType, Name: name, AutoMTLS: c.config.AutoMTLS, Connections: &c.connections, Config: c.config,
		},
	}
	if !c.config.SkipHostEnv {
		unit.Env = append(slices.Clone(unit.Env), os.Environ()...)
	}
	if strings.ContainsRune(cmd.Path, filepath.Separator) {
		path := cmd.Path
		if !filepath.IsAbs(path) {
			path = filepath.Join(cmd.Dir, path)
		}
		path, err := filepath.Abs(path)
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
	ctx, cancel := context.WithTimeout(context.Background(), c.startTimeout())
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

// Client starts the plugin if necessary and returns the protocol client, which stays usable across restarts of the plugin. It fails as
// [Client.Start] does.
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
	if connected, err = p.client.followed(current, connected); err != nil {
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

// Kill ends the plugin, its calls in flight and everything that belongs to it, and waits for that. Calling it again has no effect.
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
	c.unfollow()
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

// Exited reports whether the plugin has ended and will not be restarted.
func (c *Client) Exited() bool {
	if c.attached != nil {
		return c.attached.Exited()
	}
	if c.runtime == nil {
		return false
	}
	all := c.runtime.Launcher().Plugins()
	return len(all) == 0 || slices.Contains([]launcher.State{launcher.StateFailed, launcher.StateBlocked, launcher.StateStopped}, all[0].State)
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

// ID returns the process ID; empty without a process.
func (c *Client) ID() string { return of(c, (*library.Client).ID) }

// NegotiatedVersion returns the version that the plugin chose.
func (c *Client) NegotiatedVersion() int { return of(c, (*library.Client).NegotiatedVersion) }

// Protocol returns the protocol of the plugin, which is gRPC.
func (c *Client) Protocol() library.Protocol { return of(c, (*library.Client).Protocol) }

// ReattachConfig returns the configuration with which another client, in this process or another one, attaches to the plugin's current
// process.
func (c *Client) ReattachConfig() *library.ReattachConfig {
	return of(c, (*library.Client).ReattachConfig)
}
