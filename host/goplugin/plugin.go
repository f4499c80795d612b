// Package goplugin launches existing plugins of github.com/hashicorp/go-plugin, unchanged, on a [host.Host]: those that speak gRPC. That
// project's library does the handshake and optional TLS; the process is started, watched, limited and ended like any other plugin's. The
// plugin knows nothing about registration, so the package serves a registration socket for it in the plugin directory, where it is
// discovered like any other.
//
// Clients reach the plugin's services through the registry, which must have been made with dynamicplugins.WithConnections.
// [Connections.Dispense] returns what the plugin serves through the library's own interfaces, including brokered connections. Plugins that
// speak net/rpc are refused. A host written for the library migrates with package pluginclient.
package goplugin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Plugin says how to launch a plugin and what to register it as.
type Plugin struct {
	// CookieKey and CookieValue are the magic cookie: the environment variable that tells the plugin that a host started it.
	CookieKey, CookieValue string
	// ProtocolVersions are the versions of the plugin's services that its users understand. The plugin picks the newest that it knows, and is
	// registered with that. Nil: those of Config.
	ProtocolVersions []int
	// Type and Name are what the plugin is registered as.
	Type, Name string
	// AutoMTLS secures the connection with certificates for this one launch: nobody but this process can call the plugin.
	AutoMTLS bool
	// Connections learns how to reach the plugin.
	Connections *Connections
	// Register registers the plugin, which serves at an endpoint, and returns the function that deregisters it. Calls to such a plugin are cut
	// off when it is stopped, as with the library. Register is for a host with a registry of its own; if it is nil, the registration is served
	// at the PluginSocket of the [host.Spec], where the plugin is discovered.
	Register func(endpoint string) (deregister func())
	// Config is what else a host of the library says, nil for nothing: the plugins that can be dispensed, by version or for
	// HandshakeConfig.ProtocolVersion, static TLS, StartTimeout, Stderr, SyncStdout, SyncStderr, GRPCDialOptions, GRPCBrokerMultiplex, ports,
	// Logger, PluginLogBufferSize, and the Group of UnixSocketConfig. What a Logger or Stderr is slow to take, the plugin
	// is slow to write. Its other fields are ignored. It must not be changed afterwards.
	Config *goplugin.ClientConfig
}

const (
	// startTimeout is how long a plugin may take by default to say where it serves.
	startTimeout = time.Minute
	// maxError bounds the errors of the library.
	maxError = 512
)

// Launch launches the plugin with a host and serves its registration at spec.PluginSocket for as long as it runs. It blocks until the
// plugin has said where it serves, for which it has until the deadline of ctx or a minute, and answers there; the end of ctx, or an error,
// ends the process.
func (p *Plugin) Launch(ctx context.Context, h *host.Host, spec host.Spec) (*host.PluginProcess, error) {
	process, err := p.launch(ctx, h, spec)
	if err != nil {
		return nil, fmt.Errorf("cannot launch %s as a plugin of go-plugin: %w", spec.Name, err)
	}
	return process, nil
}

func (p *Plugin) launch(ctx context.Context, h *host.Host, spec host.Spec) (*host.PluginProcess, error) {
	if spec.PluginSocket == "" {
		return nil, errors.New("it has no path for its registration; set PluginSocket")
	}
	if p.Connections == nil {
		return nil, errors.New("it has no Connections, by which it is reached; set them, and give them to the registry")
	}
	if p.Config != nil && p.Config.GRPCBrokerMultiplex && spec.User+spec.Group != "" {
		return nil, errors.New("who serves a multiplexed connection cannot be judged; leave user and group out, or GRPCBrokerMultiplex")
	}
	if _, ok := ctx.Deadline(); !ok {
		bounded, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		ctx = bounded
	}
	private, err := privateDir(filepath.Dir(spec.PluginSocket))
	if err != nil {
		return nil, err
	}
	if p.group() != "" { // its members come to their sockets through the directory, and cannot list it
		if err := os.Chmod(private, 0o711); err != nil {
			return nil, fmt.Errorf("cannot let the group come to its socket: %w", err)
		}
	}
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	l := newLife(p, spec)
	defer close(l.settled)
	l.config = p.config(l, private)
	l.config.RunnerFunc = func(_ hclog.Logger, cmd *exec.Cmd, dir string) (runner.Runner, error) {
		l.dir, l.spec.OwnDir, l.spec.Env = dir, dir, slices.Concat(spec.Env, cmd.Env)
		return &process{life: l, start: func() error { return l.start(ctx, h) }}, nil
	}
	if deadline, _ := ctx.Deadline(); p.Config == nil || p.Config.StartTimeout == 0 {
		l.config.StartTimeout = time.Until(deadline) + time.Minute // ctx ends before that, and says why
	}
	l.client = goplugin.NewClient(l.config)
	switch err = l.meet(ctx); {
	case err == nil:
		return l.process, nil
	case l.process == nil:
		l.close()
	default:
		l.kill()
	}
	return nil, err
}

// Dial connects to an endpoint of the plugin, and fails as [Connections.Dial] does. It also fails if no process of the plugin serves there:
// whatever is at the path of one that has ended is not the plugin's.
func (p *Plugin) Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	to, known := p.Connections.get(endpoint)
	if !known {
		return nil, fmt.Errorf("no plugin of go-plugin runs at %s any more: %w", endpoint, fs.ErrNotExist)
	}
	return to.connect(ctx, endpoint)
}

// Interceptor is that of the [Connections].
func (p *Plugin) Interceptor(endpoint string) grpc.StreamClientInterceptor {
	return p.Connections.Interceptor(endpoint)
}

// config is what the library is to do for one launch, but for the runner.
func (p *Plugin) config(l *life, private string) *goplugin.ClientConfig {
	var c goplugin.ClientConfig
	if p.Config != nil {
		c = *p.Config
	}
	if c.VersionedPlugins = maps.Clone(c.VersionedPlugins); p.ProtocolVersions != nil {
		c.VersionedPlugins, c.Plugins = p.versions(&c), nil
	}
	c.MagicCookieKey, c.MagicCookieValue = p.CookieKey, p.CookieValue
	c.Cmd, c.Reattach, c.SecureConfig, c.Managed = nil, nil, nil, false
	c.AllowedProtocols = []goplugin.Protocol{goplugin.ProtocolGRPC}
	c.AutoMTLS, c.SkipHostEnv = p.AutoMTLS, true
	c.UnixSocketConfig = &goplugin.UnixSocketConfig{TempDir: private, Group: p.group()}
	c.GRPCDialOptions = slices.Concat(c.GRPCDialOptions, l.traffic.options())
	if c.GRPCBrokerMultiplex { // the library's own dialer knows of the one connection then
		l.multiplexed = &multiplexed{config: &c}
		c.GRPCDialOptions = append(c.GRPCDialOptions, grpc.WithTransportCredentials(l.multiplexed))
	} else {
		c.GRPCDialOptions = append(c.GRPCDialOptions,
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx) }))
	}
	c.SyncStdout, c.SyncStderr = also(l.stdout.to, c.SyncStdout), also(l.stderr.to, c.SyncStderr)
	if c.Stderr != nil {
		l.copies, c.Stderr = append(l.copies, c.Stderr), nil // the library knows lines only
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
		_ = l.errorsWrite.Close()
	} else {
		l.copies = append(l.copies, l.errorsWrite)
	}
	return &c
}

// also returns what writes to the log, and to another writer if there is one.
func also(log, other io.Writer) io.Writer {
	if other == nil {
		return log
	}
	return io.MultiWriter(log, other)
}

// group is who may use the plugin's sockets beside its user; empty for nobody.
func (p *Plugin) group() string {
	if p.Config == nil || p.Config.UnixSocketConfig == nil {
		return ""
	}
	return p.Config.UnixSocketConfig.Group
}

// versions are the plugins that the library asks for. Of a version for which none are given there is nothing to dispense: the connection is
// used as it is.
func (p *Plugin) versions(c *goplugin.ClientConfig) map[int]goplugin.PluginSet {
	versions := map[int]goplugin.PluginSet{}
	for _, v := range p.ProtocolVersions {
		set, found := c.VersionedPlugins[v]
		if !found && c.Plugins != nil && v == int(c.ProtocolVersion) {
			set, found = c.Plugins, true
		}
		if !found {
			set = goplugin.PluginSet{p.Name: &goplugin.NetRPCUnsupportedPlugin{}}
		}
		versions[v] = set
	}
	return versions
}

// oneLine makes one line of an error of the library, which may have in it whatever the plugin has printed.
func oneLine(err error) string {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	return untrusted.Cut(text, maxError)
}

const (
	// dirName is hidden, so that nobody takes what is in it for a plugin that was found.
	dirName = ".go-plugin"
	// socketLength is how much longer than that directory's path the paths of sockets in it are: /plugin-dir and /plugin, each with a
	// number of up to 10 digits.
	socketLength = 38
	// minStale is the age below which a socket may be one on which nobody listens yet, and minEmpty that of a directory without a socket,
	// whose plugin may still be starting.
	minStale = time.Minute
	minEmpty = 24 * time.Hour
)

// CheckDir returns an error if the path of a plugin directory is too long for the sockets of plugins in it.
func (*Plugin) CheckDir(dir string) error { return checkLength(filepath.Join(dir, dirName)) }

func checkLength(dir string) error {
	if tooLong := len(dir) + socketLength - sock.MaxPath; tooLong > 0 {
		return fmt.Errorf("the path of the plugin directory is %d bytes too long for the socket that the plugin makes in %s; "+
			"choose a shorter one", tooLong, dir)
	}
	return nil
}

// privateDir makes the directory in which plugins make their sockets, and removes what is left in it of those whose host was killed.
func privateDir(parent string) (string, error) {
	dir := filepath.Join(parent, dirName)
	if err := checkLength(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot create the directory for its socket: %w", err)
	}
	removeStale(dir, time.Now())
	return dir, nil
}

func removeStale(dir string, now time.Time) {
	launches, _ := os.ReadDir(dir) // what cannot be read is not removed
	for _, launch := range launches {
		path, stale := filepath.Join(dir, launch.Name()), minStale
		if sockets, _ := os.ReadDir(path); len(sockets) == 0 {
			stale = minEmpty
		}
		if info, err := launch.Info(); err != nil || now.Sub(info.ModTime()) < stale {
			continue
		}
		if !served(path) {
			_ = os.RemoveAll(path) // what cannot be removed is somebody else's
		}
	}
}

// served says whether anybody may accept on a socket in a directory.
func served(dir string) bool {
	sockets, _ := os.ReadDir(dir)
	return slices.ContainsFunc(sockets, func(socket os.DirEntry) bool {
		// The directory may be another user's, whose links are not followed.
		conn, _, err := sock.DialBelow(context.Background(), dir, filepath.Join(dir, socket.Name()))
		if err == nil {
			_ = conn.Close() // nothing was said
		}
		return !sock.IsRefused(err) && !sock.IsGone(err) && !errors.Is(err, syscall.ENOTSOCK)
	})
}

// Connections knows how to reach the running plugins. It implements dynamicplugins.Connections. The zero value has none. Its methods are
// safe for concurrent use.
type Connections struct {
	mu sync.Mutex
	at map[string]target // by endpoint
}

// target is how a plugin is reached. Without a tls it serves in the clear.
type target struct {
	dial    dialer
	tls     *tls.Config
	client  *goplugin.Client
	traffic *traffic
}

type dialer func(context.Context) (net.Conn, error)

func (c *Connections) add(endpoint string, to target) {
	if to.tls != nil {
		to.tls = to.tls.Clone()
		to.tls.NextProtos = []string{"h2"} // without which servers refuse
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[string]target{}
	}
	c.at[endpoint] = to
}

func (c *Connections) get(endpoint string) (target, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to, known := c.at[endpoint]
	return to, known
}

// DialOptions returns the options for a connection to an endpoint: a go-plugin plugin may send and receive messages of any size, as with
// the library's own host, and is not stopped while calls on the connection are in flight.
func (c *Connections) DialOptions(endpoint string) []grpc.DialOption {
	to, known := c.get(endpoint)
	if !known {
		return nil
	}
	return append(to.traffic.options(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
}

// Interceptor counts the calls that are forwarded to an endpoint as [Connections.DialOptions] does those of the host itself; nil for what
// is no plugin of go-plugin.
func (c *Connections) Interceptor(endpoint string) grpc.StreamClientInterceptor {
	to, known := c.get(endpoint)
	if !known {
		return nil
	}
	return to.traffic.stream
}

// remove removes an endpoint, unless another process serves there by now. A plugin that was never met may have named that of another one.
func (c *Connections) remove(endpoint string, of *traffic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at[endpoint].traffic == of {
		delete(c.at, endpoint)
	}
}

// Dial connects to an endpoint: with TLS to a running go-plugin plugin that uses it, and to everything else as the registry does by
// default. It fails if nothing accepts there, if the TLS handshake fails, or if ctx ends first.
func (c *Connections) Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	to, known := c.get(endpoint)
	if !known {
		return sock.DialKnown(ctx, endpoint)
	}
	return to.connect(ctx, endpoint)
}

func (to target) connect(ctx context.Context, endpoint string) (net.Conn, error) {
	raw, err := to.dial(ctx)
	if err != nil || to.tls == nil {
		return raw, err
	}
	conn := tls.Client(raw, to.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot connect to %s with TLS: %w", endpoint, err), raw.Close())
	}
	return conn, nil
}

// Dispense returns what GRPCClient of the [Plugin].Config makes of the plugin at an endpoint: with the library's own connection and broker,
// both ways. The value belongs to that instance of the plugin; after a restart, dispense again. Dispense may block until the plugin
// answers. It fails if no go-plugin plugin runs there, and with the library's errors.
//
// It is meant for the dispensers of a registry.
func (c *Connections) Dispense(endpoint, name string) (any, error) {
	to, known := c.get(endpoint)
	if !known {
		return nil, fmt.Errorf("no plugin of go-plugin runs at %s; dispense it again when it is registered again", endpoint)
	}
	client, err := to.client.Client()
	if err != nil {
		return nil, libraryError{err}
	}
	return client.Dispense(name)
}

// Client returns the library's client of the plugin that serves at an endpoint, which the caller must not end; nil if there is none.
func (c *Connections) Client(endpoint string) *goplugin.Client {
	to, _ := c.get(endpoint)
	return to.client
}

type registration struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

func (r registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer. A plugin of go-plugin has no ear for it, and its host is told anyway.
func (registration) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serve makes the plugin known at its path, where nobody but this user may ask, until stop is called.
func (l *life) serve() (stop func(), err error) {
	listener, err := sock.Listen(l.spec.PluginSocket, 0o600)
	if err != nil {
		return func() {}, err
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, registration{info: &registerapi.PluginInfo{
		Type: l.plugin.Type, Name: l.plugin.Name, Endpoint: l.endpoint, SupportedVersions: []string{strconv.Itoa(l.client.NegotiatedVersion())},
	}})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ends with Stop, and with nothing else that could be told
	return func() {
		server.Stop()
		serving.Wait()
	}, nil
}
