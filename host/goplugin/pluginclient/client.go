// Package pluginclient replaces the client of github.com/hashicorp/go-plugin in existing hosts. Its [NewClient] accepts the library's
// configuration and returns a client with the same methods, whose plugin Patchbay launches: the plugin is restarted when it crashes, can
// be limited, and is stopped with its host.
//
// A dispensed value follows the plugin: each call is made to the process that serves when the call begins, and waits while the plugin is
// restarting. A call in progress ends with its process. The broker and the context that a GRPCPlugin receives belong to one process:
// dispense again after a restart if you use them, or if the plugin now speaks another version. Plugins that speak net/rpc are refused.
package pluginclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// name is the plugin's name in its launcher.
const name = "plugin"

// Client launches and uses one plugin. It has the methods of the library's client. They are safe for concurrent use.
type Client struct {
	config      *library.ClientConfig
	options     []func(*launcher.Plugin)
	connections goplugin.Connections

	start    func() error            // starts the plugin the first time, and returns the same afterwards
	stop     context.CancelCauseFunc // cancels start
	killing  sync.Once
	attached atomic.Pointer[library.Client] // to a plugin that another process has started; nil for others
	undo     []func()                       // releases what start acquired, in the order of acquisition

	mu       sync.Mutex
	changed  chan struct{}            // closed when a field below changes; nil before the plugin is started
	life     *library.Client          // of the process that serves; nil while there is none
	endpoint string                   // the endpoint of that process
	ended    error                    // why the plugin is not restarted; nil while it may be
	news     string                   // the message of the last event
	follow   map[int]*grpc.ClientConn // the connections of dispensed values, by the version of the plugin; nil after Kill
	last     *library.GRPCClient      // the last result of Client
	lastLife *library.Client          // of the process for which last was created
}

// errKilled is the error of methods after Kill.
var errKilled = errors.New("the plugin was killed")

// NewClient returns a client for a plugin. The first method that needs the plugin starts it. The configuration must not be changed
// afterwards. The options change how the launcher runs the plugin; by default, it restarts the plugin when it crashes. Name, NoSocket and
// Protocol are set after the options.
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
			err = cmp.Or(context.Cause(ctx), err)
			c.killing.Do(func() { c.end(err) })
		}
		return err
	})
	return c
}

// CleanupClients calls the library's CleanupClients, which also stops the plugins of all Managed clients of this package.
func CleanupClients() { library.CleanupClients() }

// Start starts the plugin, waits until it serves, and returns its address. Later calls return the same error, or the address of the current
// process.
func (c *Client) Start() (net.Addr, error) {
	life, err := c.started()
	if err != nil {
		return nil, err
	}
	return life.Start() // has started, so it returns the address
}

// started starts the plugin if necessary and returns the library's client of the process that serves.
func (c *Client) started() (*library.Client, error) {
	if err := c.start(); err != nil {
		return nil, err
	}
	return c.current(context.Background())
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
	h := &host.Host{}
	_ = h.Initialize(plugin.Config{}) // fails only if h is not new
	l := launcher.New(launcher.Config{
		Host: h, Dir: dir, Observe: c.observe,
		Registrations: registered{},
	})
	c.change(func() {})
	defer context.AfterFunc(ctx, l.Close)()
	unbind := context.AfterFunc(bound, func() { c.kill(bound.Err()) })
	c.undo = append(c.undo, func() {
		unbind()
		l.Close()
		h.Close(context.Background()) // its plugin has ended
	})
	if c.config.Managed {
		c.manage()
	}
	if err := l.Set([]launcher.Plugin{unit}); err != nil {
		return err
	}
	return l.Start(name)
}

// makeDir makes the directory of the plugin's sockets, and removes those of hosts that were killed.
func (c *Client) makeDir() (string, error) {
	const prefix, room = "pbclient", 70 // room is the maximum length of a socket's path below the directory
	parent, from := sock.TempDir(room), "TMPDIR"
	if u := c.config.UnixSocketConfig; u != nil && u.TempDir != "" {
		parent, from = u.TempDir, "UnixSocketConfig.TempDir"
	}
	parent = absolute(parent)
	sock.RemoveUnheld(parent, prefix, func(dir string) {
		if number := filepath.Base(dir)[len(prefix):]; strings.Trim(number, "0123456789") == "" { // otherwise it is not one of this package
			_ = os.RemoveAll(dir)
		}
	})
	dir, err := sock.HoldTemp(parent, prefix)
	if err != nil {
		return "", fmt.Errorf("cannot make a directory for the plugin's sockets; set %s to one that can be written to: %w", from, err)
	}
	c.undo = append(c.undo, func() {
		if err := errors.Join(os.RemoveAll(dir.Name()), dir.Close()); err != nil { // a killed plugin leaves its socket
			c.config.Logger.Warn("cannot remove the directory of the plugin's sockets", "error", err)
		}
	})
	return dir.Name(), nil
}

// absolute returns the absolute path, or the path itself if it is empty or the working directory has been removed.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); path != "" && err == nil {
		return abs
	}
	return path
}

// registered implements [launcher.Registrations]. The plugin is registered when it has been launched; see [Client.register].
type registered struct{}

func (registered) AwaitRegistered(context.Context, string, func(error)) error { return nil }

func (registered) Announced(string) (plugin.Info, bool) { return plugin.Info{}, false }

// register registers the process that serves at an endpoint. It implements [goplugin.Protocol].Register.
func (c *Client) register(endpoint string) (deregister func()) {
	life := c.connections.Client(endpoint)
	c.change(func() { c.life, c.endpoint, c.ended = life, endpoint, nil })
	return func() {
		c.change(func() {
			if c.life == life {
				c.life = nil
			}
		})
	}
}

// observe records an event of the launcher. The end that Kill causes has Kill's error.
func (c *Client) observe(e plugin.Event) {
	c.change(func() {
		c.news = e.Message
		if c.follow != nil && slices.Contains([]plugin.State{plugin.StateFailed, plugin.StateBlocked, plugin.StateStopped}, e.State) {
			c.ended = fmt.Errorf("the plugin has ended: %s", e.Message)
		}
	})
}

// change updates the state with do and wakes all waiters.
func (c *Client) change(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
	if c.changed != nil {
		close(c.changed)
	}
	c.changed = make(chan struct{})
}

// startTimeout is how long a process of the plugin may take until it serves.
func (c *Client) startTimeout() time.Duration { return max(c.config.StartTimeout, time.Minute) }

func (c *Client) unit() (unit launcher.Plugin, err error) {
	cmd := c.config.Cmd
	path := cmd.Path
	if !filepath.IsAbs(path) { // not looked up in PATH: exec.Command has done it
		if path, err = filepath.Abs(filepath.Join(cmd.Dir, path)); err != nil {
			return unit, err
		}
	}
	unit = launcher.Plugin{
		Spec: host.Spec{
			Args: append([]string{path}, cmd.Args[min(1, len(cmd.Args)):]...), Dir: absolute(cmd.Dir), ExtraFiles: cmd.ExtraFiles,
			Env: append([]string{}, cmd.Env...), // nil would inherit the host's
		},
		Manual: true, StartTimeout: c.startTimeout(),
	}
	if !c.config.SkipHostEnv {
		unit.Env = append(unit.Env, os.Environ()...)
	}
	if c.config.SecureConfig != nil {
		if unit.SHA256, unit.Interpreter, err = checked(c.config.SecureConfig, path); err != nil {
			return unit, err
		}
	}
	for _, change := range c.options {
		change(&unit)
	}
	if unit.OnDemand || unit.Upgrade == plugin.UpgradeHandover {
		return unit, notOffered("a launcher.Plugin with OnDemand or UpgradeHandover", "what is dispensed follows the plugin without")
	}
	unit.Name, unit.NoSocket, unit.Protocol = name, false, &goplugin.Protocol{
		Connections: &c.connections, Register: c.register, Config: c.config,
	}
	return unit, nil
}

// current returns the library's client of the process that serves. It waits for a process, at most for the start timeout.
func (c *Client) current(ctx context.Context) (*library.Client, error) {
	if attached := c.attached.Load(); attached != nil {
		return attached, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.startTimeout())
	defer cancel()
	for {
		c.mu.Lock()
		life, ended, news, changed := c.life, c.ended, c.news, c.changed
		c.mu.Unlock()
		switch {
		case ended != nil: // also if life is not cleared yet
			return nil, ended
		case life != nil && !life.Exited():
			return life, nil
		case changed == nil:
			return nil, errors.New("the plugin was not started")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("the plugin does not serve: %w; %s", ctx.Err(), news)
		}
	}
}

// Client starts the plugin if necessary and returns the protocol client, a [library.GRPCClient] whose Conn and Dispense stay usable across
// restarts of the plugin. It fails as [Client.Start] does.
func (c *Client) Client() (library.ClientProtocol, error) {
	life, err := c.started()
	if err != nil {
		return nil, err
	}
	if c.attached.Load() != nil {
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
	if attached := c.attached.Load(); attached != nil {
		attached.Kill()
	}
	c.killing.Do(func() { c.end(cause) })
}

// end stops the plugin, if the client has started it, and releases everything. The cause is the error of later calls.
func (c *Client) end(cause error) {
	var follow map[int]*grpc.ClientConn
	c.change(func() { follow, c.follow = c.follow, nil })
	for _, conn := range follow {
		_ = conn.Close() // fails only if the host has closed it
	}
	for _, undo := range slices.Backward(c.undo) {
		undo()
	}
	c.change(func() { c.ended = cause })
}

// Exited reports whether the plugin has ended and will not be restarted.
func (c *Client) Exited() bool {
	if attached := c.attached.Load(); attached != nil {
		return attached.Exited()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended != nil
}

// fromCurrent returns get for the process that serves; the zero value without one.
func fromCurrent[T any](c *Client, get func(*library.Client) T) (zero T) {
	if current, err := c.current(context.Background()); err == nil {
		return get(current)
	}
	return zero
}

// ID returns the process ID; empty without a process.
func (c *Client) ID() string { return fromCurrent(c, (*library.Client).ID) }

// NegotiatedVersion returns the version that the plugin chose.
func (c *Client) NegotiatedVersion() int { return fromCurrent(c, (*library.Client).NegotiatedVersion) }

// Protocol starts the plugin if necessary and returns ProtocolGRPC; ProtocolInvalid if it cannot be started.
func (c *Client) Protocol() library.Protocol {
	if c.start() != nil {
		return library.ProtocolInvalid
	}
	return fromCurrent(c, (*library.Client).Protocol)
}

// ReattachConfig returns the configuration with which another client, in this process or another one, attaches to the plugin's current
// process.
func (c *Client) ReattachConfig() *library.ReattachConfig {
	return fromCurrent(c, func(current *library.Client) *library.ReattachConfig {
		config := current.ReattachConfig()
		if config != nil && c.attached.Load() == nil { // the library did not start the process itself
			config.Pid, _ = strconv.Atoi(current.ID())
		}
		return config
	})
}
