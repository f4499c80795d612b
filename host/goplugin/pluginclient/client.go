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
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	library "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/reconciler"
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
	options     []func(*launcher.Plugin)
	connections goplugin.Connections

	start    func() error            // starts the plugin the first time, and returns the same afterwards
	stop     context.CancelCauseFunc // ends start
	killing  sync.Once
	attached atomic.Pointer[library.Client]   // to a plugin that somebody else has started; nil for others
	runtime  atomic.Pointer[patchbay.Runtime] // nil until the plugin is started
	// undo releases what start acquired, in the order of acquisition.
	undo []func() error

	mu     sync.Mutex
	follow map[int]*grpc.ClientConn // the connections of dispensed values, by the version of the plugin; nil after Kill
	// last is what Client returned last, and lastLife the process that it was made for.
	last     *library.GRPCClient
	lastLife *library.Client
}

// errKilled is the error of a Start or Client that Kill ended.
var errKilled = errors.New("the plugin was killed")

// NewClient returns a client for a plugin, which is started by the first call that needs it, or by Start. The configuration must not be
// changed afterwards. The options change how the launcher runs the plugin, which it restarts by default when it crashes; Name, NoSocket and
// Protocol are set after them.
func NewClient(config *library.ClientConfig, options ...func(*launcher.Plugin)) *Client {
	own := *config
	if own.Logger == nil { // as the library does
		own.Logger = hclog.New(&hclog.LoggerOptions{Output: hclog.DefaultOutput, Level: hclog.Trace, Name: "plugin"})
	}
	c := &Client{config: &own, options: options, follow: map[int]*grpc.ClientConn{}}
	ctx, stop := context.WithCancelCause(context.Background())
	c.stop, c.start = stop, sync.OnceValue(func() error {
		err := c.launch(ctx)
		if err != nil {
			c.killing.Do(func() { err = cmp.Or(context.Cause(ctx), c.end(), err) })
		}
		return err
	})
	return c
}

// CleanupClients is that of the library, which stops the plugins of all Managed clients of this package, too.
func CleanupClients() { library.CleanupClients() }

// Start starts the plugin, waits until it is registered, and returns its address. Later calls return the same error, or the address of
// the process that the plugin has by then.
func (c *Client) Start() (net.Addr, error) {
	if err := c.start(); err != nil {
		return nil, err
	}
	client, err := c.current()
	if err != nil {
		return nil, err
	}
	return client.Start() // which has started, and says where
}

// launch starts the plugin until ctx ends.
func (c *Client) launch(ctx context.Context) error {
	if err := cmp.Or(context.Cause(ctx), refused(c.config)); err != nil {
		return err
	}
	if c.config.Reattach != nil {
		return c.attach(ctx)
	}
	unit, err := c.unit()
	if err != nil {
		return err
	}
	bound, err := contextOf(c.config.Cmd)
	if err != nil {
		return err
	}
	if err := bound.Err(); err != nil {
		return fmt.Errorf("the context of Cmd has ended: %w", err)
	}
	dir, err := c.makeDir()
	if err != nil {
		return err
	}
	runtime, err := patchbay.New(patchbay.Config{
		PluginDirs:      []string{dir},
		RegistryOptions: []dynamicplugins.Option{dynamicplugins.WithConnections(configured{&c.connections, c.config.GRPCDialOptions})},
	})
	if err != nil {
		return err
	}
	stop := c.run(runtime)
	defer context.AfterFunc(ctx, stop)()
	unbind := context.AfterFunc(bound, func() { c.kill(bound.Err()) })
	c.undo = append(c.undo, func() error { unbind(); return nil })
	if c.config.Managed {
		c.manage()
	}
	if err := runtime.Launcher().Set([]launcher.Plugin{unit}); err != nil {
		return err
	}
	err = runtime.Launcher().Start(name)
	c.runtime.Store(runtime) // not earlier: before its start the plugin is in the state of one that was stopped
	if err != nil {
		return err
	}
	_, err = c.registered(ctx)
	return err
}

// makeDir makes the directory of the plugin's sockets, and removes those of hosts that were killed.
func (c *Client) makeDir() (string, error) {
	const prefix = "pbclient"
	parent, from := sock.TempDir(room), "TMPDIR"
	if u := c.config.UnixSocketConfig; u != nil && u.TempDir != "" {
		parent, from = u.TempDir, "UnixSocketConfig.TempDir"
	}
	sock.RemoveUnheld(parent, prefix, func(dir string) {
		if number := filepath.Base(dir)[len(prefix):]; strings.Trim(number, "0123456789") == "" { // else a user has named it
			_ = os.RemoveAll(dir)
		}
	})
	dir, err := sock.HoldTemp(parent, prefix)
	if err != nil {
		return "", fmt.Errorf("cannot make a directory for the plugin's sockets; set %s to one that can be written to: %w", from, err)
	}
	c.undo = append(c.undo, func() error {
		return errors.Join(os.RemoveAll(dir.Name()), dir.Close()) // a killed plugin leaves its socket
	})
	return dir.Name(), nil
}

// run runs the runtime of the plugin until stop is called.
func (c *Client) run(runtime *patchbay.Runtime) (stop func()) {
	runtime.AddHandler(pluginType, patchbay.AcceptHandler())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- runtime.Run(ctx) }()
	c.undo = append(c.undo, func() error {
		stop()
		return <-ended
	})
	return stop
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
	path := cmd.Path
	if !filepath.IsAbs(path) { // a name without a slash, too: exec.Command has looked it up
		var err error
		if path, err = filepath.Abs(filepath.Join(cmd.Dir, path)); err != nil {
			return launcher.Plugin{}, err
		}
	}
	unit := launcher.Plugin{
		Spec: host.Spec{
			Args: append([]string{path}, cmd.Args[min(1, len(cmd.Args)):]...), Dir: cmd.Dir, ExtraFiles: cmd.ExtraFiles,
			Env: append([]string{}, cmd.Env...), // nil would inherit the host's
		},
		Manual: true, StartTimeout: c.startTimeout(),
	}
	if !c.config.SkipHostEnv {
		unit.Env = append(unit.Env, os.Environ()...)
	}
	if c.config.SecureConfig != nil {
		var err error
		if unit.SHA256, unit.Interpreter, err = checked(c.config.SecureConfig, path); err != nil {
			return unit, err
		}
	}
	for _, change := range c.options {
		change(&unit)
	}
	unit.Name, unit.NoSocket, unit.Protocol = name, false, &goplugin.Plugin{
		CookieKey: c.config.MagicCookieKey, CookieValue: c.config.MagicCookieValue, ProtocolVersions: c.versions(),
		Type: pluginType, Name: name, AutoMTLS: c.config.AutoMTLS, Connections: &c.connections, Config: c.config,
	}
	return unit, nil
}

// versions are those of the configuration.
func (c *Client) versions() []int {
	versions := slices.Sorted(maps.Keys(c.config.VersionedPlugins))
	if own := int(c.config.ProtocolVersion); c.config.Plugins != nil && !slices.Contains(versions, own) {
		versions = append(versions, own)
	}
	return versions
}

// current returns the library's client of the present life. It waits while the plugin is started again.
func (c *Client) current() (*library.Client, error) {
	if attached := c.attached.Load(); attached != nil {
		return attached, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.startTimeout())
	defer cancel()
	events := c.runtime.Load().Events(ctx, 0)
	for {
		info, err := c.registered(ctx)
		if err != nil {
			return nil, err
		}
		if client := c.connections.Client(info.ConnectionInfo.SocketPath); client != nil && !client.Exited() {
			return client, nil
		}
		if _, open := <-events; !open { // its end is known, and not registered yet
			return nil, fmt.Errorf("the plugin has ended: %w", ctx.Err())
		}
	}
}

// registered waits until the plugin is registered, as long as a start may take.
func (c *Client) registered(ctx context.Context) (*dynamicplugins.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, c.startTimeout())
	defer cancel()
	for {
		// No event reports that a plugin that ended by itself is not restarted.
		waiting, stop := context.WithTimeout(ctx, time.Second/10)
		info, err := c.runtime.Load().Registry().WaitForPlugin(waiting, pluginType, name)
		stop()
		switch {
		case c.Exited(): // before it is gone from the registry, too
			return nil, fmt.Errorf("the plugin has ended, and is not restarted%s", c.trouble())
		case err == nil:
			return info, nil
		case waiting.Err() == nil || ctx.Err() != nil:
			return nil, fmt.Errorf("the plugin is not registered: %w%s", err, c.trouble())
		}
	}
}

// trouble returns what failed last in the registration of the plugin, after a separator; empty for nothing.
func (c *Client) trouble() string {
	for _, event := range slices.Backward(c.runtime.Load().LastEvents(64)) {
		if event.Kind == reconciler.EventFailed {
			return ": " + event.Message
		}
	}
	return ""
}

// Client starts the plugin if necessary and returns the protocol client, a [library.GRPCClient] whose Conn and Dispense stay usable across
// restarts of the plugin. It fails as [Client.Start] does.
func (c *Client) Client() (library.ClientProtocol, error) {
	if err := c.start(); err != nil {
		return nil, err
	}
	life, err := c.current()
	if err != nil {
		return nil, err
	}
	if life == c.attached.Load() {
		return life.Client()
	}
	return c.following(life)
}

// Kill ends the plugin, its calls in flight and everything that belongs to it, and waits for that, also while it is starting. Calling it
// again has no effect.
func (c *Client) Kill() { c.kill(errKilled) }

func (c *Client) kill(cause error) {
	c.stop(cause)
	_ = c.start() // Start returns its error
	c.killing.Do(func() {
		if err := c.end(); err != nil {
			c.config.Logger.Warn("the runtime of the plugin failed", "error", err)
		}
	})
}

// end ends everything, and returns the error with which the runtime failed.
func (c *Client) end() error {
	if attached := c.attached.Load(); attached != nil {
		attached.Kill()
	}
	c.unfollow()
	var errs []error
	for _, undo := range slices.Backward(c.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// Exited reports whether the plugin has ended and will not be restarted.
func (c *Client) Exited() bool {
	if attached := c.attached.Load(); attached != nil {
		return attached.Exited()
	}
	runtime := c.runtime.Load()
	if runtime == nil {
		return false
	}
	all := runtime.Launcher().Plugins()
	return len(all) == 0 || slices.Contains([]launcher.State{launcher.StateFailed, launcher.StateBlocked, launcher.StateStopped}, all[0].State)
}

// of asks the present life something, and returns the zero value if there is none.
func of[T any](c *Client, ask func(*library.Client) T) (zero T) {
	if c.attached.Load() != nil || c.runtime.Load() != nil {
		if current, err := c.current(); err == nil {
			return ask(current)
		}
	}
	return zero
}

// ID returns the process ID; empty without a process.
func (c *Client) ID() string { return of(c, (*library.Client).ID) }

// NegotiatedVersion returns the version that the plugin chose.
func (c *Client) NegotiatedVersion() int { return of(c, (*library.Client).NegotiatedVersion) }

// Protocol starts the plugin if necessary and returns its protocol, which is gRPC; ProtocolInvalid if it cannot be started.
func (c *Client) Protocol() library.Protocol {
	if c.start() != nil {
		return library.ProtocolInvalid
	}
	return of(c, (*library.Client).Protocol)
}

// ReattachConfig returns the configuration with which another client, in this process or another one, attaches to the plugin's current
// process.
func (c *Client) ReattachConfig() *library.ReattachConfig {
	return of(c, func(current *library.Client) *library.ReattachConfig {
		config := current.ReattachConfig()
		if config != nil && c.attached.Load() == nil { // the library did not start the process itself
			config.Pid, _ = strconv.Atoi(current.ID())
		}
		return config
	})
}
