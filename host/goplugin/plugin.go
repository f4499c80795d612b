// Package goplugin launches existing, unchanged plugins of github.com/hashicorp/go-plugin that speak gRPC on a [host.Host]. That project's
// library does the handshake and optional TLS; the process is started, watched, limited and stopped like that of any plugin. Such a plugin
// does not know the registration protocol, so the package serves a registration socket for it in the plugin directory, where it is
// discovered like any plugin.
//
// Clients reach the plugin's services through the registry, which must have been created with dynamicplugins.WithConnections.
// [Connections.Dispense] returns clients of the library's own interfaces, including brokered connections. Plugins that speak net/rpc are
// refused. A host written for the library migrates with package pluginclient.
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

// Protocol launches a plugin of go-plugin. It implements launcher.Protocol.
type Protocol struct {
	// Type and Name are the type and name under which the plugin is registered.
	Type, Name string
	// ProtocolVersions are the versions of the plugin's services that its users understand. The plugin chooses the newest that it knows,
	// and is registered with that. Nil means those of Config.
	ProtocolVersions []int
	// Connections receives the address of the running plugin. It is required.
	Connections *Connections
	// Register registers the plugin that serves at endpoint, and returns the function that deregisters it. It is for hosts with a registry
	// of their own: the calls of such a plugin are cut off when it is stopped, as by the library. If Register is nil, the registration is
	// served at the PluginSocket of the [host.Spec], where the plugin is discovered.
	Register func(endpoint string) (deregister func())
	// Config is the library's configuration of the plugin. The magic cookie of its HandshakeConfig is required. The other fields that are
	// used are AutoMTLS, static TLS, the plugins that can be dispensed, by version or for HandshakeConfig.ProtocolVersion, StartTimeout,
	// Stderr, SyncStdout, SyncStderr, GRPCDialOptions, GRPCBrokerMultiplex, ports, Logger, PluginLogBufferSize, and the Group of
	// UnixSocketConfig. A slow Logger or Stderr slows down the plugin. Config must not be changed afterwards.
	Config *goplugin.ClientConfig
}

// NewConfig returns a Config with a magic cookie, for hosts that do not import the library.
func NewConfig(cookieKey, cookieValue string) *goplugin.ClientConfig {
	return &goplugin.ClientConfig{HandshakeConfig: goplugin.HandshakeConfig{MagicCookieKey: cookieKey, MagicCookieValue: cookieValue}}
}

const (
	// startTimeout is the default time for a plugin to send its handshake.
	startTimeout = time.Minute
	// maxError is the maximum length of an error of the library.
	maxError = 512
)

// Launch launches the plugin with a host and serves its registration at spec.PluginSocket while it runs. It blocks until the plugin has
// sent its handshake and answers at its address, at most until the deadline of ctx or, without one, for a minute. If ctx is done earlier,
// or Launch fails, the process is killed.
func (p *Protocol) Launch(ctx context.Context, h *host.Host, spec host.Spec) (*host.PluginProcess, error) {
	process, err := p.launch(ctx, h, spec)
	if err != nil {
		return nil, fmt.Errorf("cannot launch %s as a plugin of go-plugin: %w", spec.Name, err)
	}
	return process, nil
}

func (p *Protocol) launch(ctx context.Context, h *host.Host, spec host.Spec) (*host.PluginProcess, error) {
	if spec.PluginSocket == "" {
		return nil, errors.New("it has no path for its registration; set PluginSocket")
	}
	if p.Connections == nil {
		return nil, errors.New("it has no Connections, by which it is reached; set them, and give them to the registry")
	}
	if p.Config == nil {
		return nil, errors.New("it has no Config, which has its magic cookie; set it")
	}
	if p.Config.GRPCBrokerMultiplex && spec.User+spec.Group != "" {
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
	if p.group() != "" { // members of the group may pass through the directory, but not list it
		if err := os.Chmod(private, 0o711); err != nil {
			return nil, fmt.Errorf("cannot let the group come to its socket: %w", err)
		}
	}
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	l := newLife(p, spec)
	defer close(l.launched)
	l.config = p.config(l, private)
	l.config.RunnerFunc = func(_ hclog.Logger, cmd *exec.Cmd, dir string) (runner.Runner, error) {
		l.dir, l.spec.OwnDir, l.spec.Env = dir, dir, slices.Concat(spec.Env, cmd.Env)
		return &process{life: l, start: func() error { return l.start(ctx, h) }}, nil
	}
	if deadline, _ := ctx.Deadline(); p.Config.StartTimeout == 0 {
		l.config.StartTimeout = time.Until(deadline) + time.Minute // ctx is done earlier, with a better error
	}
	l.client = goplugin.NewClient(l.config)
	switch err = l.connect(ctx); {
	case err == nil:
		return l.process, nil
	case l.process == nil:
		l.close()
	default:
		l.kill()
	}
	return nil, err
}

// Dial connects to an endpoint of the plugin, and fails as [Connections.Dial] does. It also fails if no process of the plugin serves there,
// even if another process does.
func (p *Protocol) Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	to, known := p.Connections.get(endpoint)
	if !known {
		return nil, fmt.Errorf("no plugin of go-plugin runs at %s any more: %w", endpoint, fs.ErrNotExist)
	}
	return to.connect(ctx, endpoint)
}

// Interceptor calls [Connections.Interceptor].
func (p *Protocol) Interceptor(endpoint string) grpc.StreamClientInterceptor {
	return p.Connections.Interceptor(endpoint)
}

// config returns the library's configuration for one launch, without the runner.
func (p *Protocol) config(l *life, private string) *goplugin.ClientConfig {
	c := *p.Config
	if c.VersionedPlugins = maps.Clone(c.VersionedPlugins); p.ProtocolVersions != nil {
		c.VersionedPlugins, c.Plugins = p.versions(&c), nil
	}
	c.Cmd, c.Reattach, c.SecureConfig, c.Managed = nil, nil, nil, false
	c.AllowedProtocols = []goplugin.Protocol{goplugin.ProtocolGRPC}
	c.SkipHostEnv = true
	c.UnixSocketConfig = &goplugin.UnixSocketConfig{TempDir: private, Group: p.group()}
	c.GRPCDialOptions = slices.Concat(c.GRPCDialOptions, l.traffic.options())
	if c.GRPCBrokerMultiplex { // needs the library's own dialer, which uses the multiplexed connection
		l.multiplexed = &multiplexed{config: &c}
		c.GRPCDialOptions = append(c.GRPCDialOptions, grpc.WithTransportCredentials(l.multiplexed))
	} else {
		c.GRPCDialOptions = append(c.GRPCDialOptions,
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx) }))
	}
	c.SyncStdout, c.SyncStderr = also(l.stdout.to, c.SyncStdout), also(l.stderr.to, c.SyncStderr)
	if c.Stderr != nil {
		l.copies, c.Stderr = append(l.copies, c.Stderr), nil // the library would only copy whole lines
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
		_ = l.errorsWrite.Close()
	} else {
		l.copies = append(l.copies, l.errorsWrite)
	}
	return &c
}

// also returns a writer to the log and, if other is not nil, to other.
func also(log, other io.Writer) io.Writer {
	if other == nil {
		return log
	}
	return io.MultiWriter(log, other)
}

// group returns the group that may use the plugin's sockets in addition to its user; empty for none.
func (p *Protocol) group() string {
	if p.Config.UnixSocketConfig == nil {
		return ""
	}
	return p.Config.UnixSocketConfig.Group
}

// versions returns the plugins of each protocol version. A version without plugins gets a placeholder: nothing can be dispensed, and only
// the connection is used.
func (p *Protocol) versions(c *goplugin.ClientConfig) map[int]goplugin.PluginSet {
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

// oneLine returns the text of a library's error in one line. The text may contain anything that the plugin has printed.
func oneLine(err error) string {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	return untrusted.Cut(text, maxError)
}

const (
	// dirName is hidden, so that its sockets are not discovered as plugins.
	dirName = ".go-plugin"
	// socketLength is the length of a socket's path below that directory: /plugin-dir and /plugin, each with a number of up to 10 digits.
	socketLength = 38
	// minStale is the age at which a directory whose socket refuses connections is removed; a younger plugin may not listen yet. minEmpty
	// is the same for a directory without a socket, whose plugin may still be starting.
	minStale = time.Minute
	minEmpty = 24 * time.Hour
)

// CheckDir returns an error if the path of a plugin directory is too long for the sockets of plugins in it.
func (*Protocol) CheckDir(dir string) error { return checkLength(filepath.Join(dir, dirName)) }

func checkLength(dir string) error {
	if tooLong := len(dir) + socketLength - sock.MaxPath; tooLong > 0 {
		return fmt.Errorf("the path of the plugin directory is %d bytes too long for the socket that the plugin makes in %s; "+
			"choose a shorter one", tooLong, dir)
	}
	return nil
}

// privateDir creates the directory for the sockets of plugins, and removes what killed hosts have left in it.
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
	launches, _ := os.ReadDir(dir) // nothing is removed if it fails
	for _, launch := range launches {
		path, stale := filepath.Join(dir, launch.Name()), minStale
		if sockets, _ := os.ReadDir(path); len(sockets) == 0 {
			stale = minEmpty
		}
		if info, err := launch.Info(); err != nil || now.Sub(info.ModTime()) < stale {
			continue
		}
		if !isServed(path) {
			_ = os.RemoveAll(path) // fails for another user's directory
		}
	}
}

// isServed reports whether a process may accept connections on a socket in a directory.
func isServed(dir string) bool {
	sockets, _ := os.ReadDir(dir)
	return slices.ContainsFunc(sockets, func(socket os.DirEntry) bool {
		// Does not follow links, because the directory may belong to another user.
		conn, _, err := sock.DialBelow(context.Background(), dir, filepath.Join(dir, socket.Name()))
		if err == nil {
			_ = conn.Close()
		}
		return !sock.IsRefused(err) && !sock.IsGone(err) && !errors.Is(err, syscall.ENOTSOCK)
	})
}

// Connections has the addresses of running plugins. It implements dynamicplugins.Connections. The zero value is empty and ready to use. Its
// methods are safe for concurrent use.
type Connections struct {
	mu sync.Mutex
	at map[string]target // by endpoint
}

// target is a running plugin. It serves without TLS if tls is nil.
type target struct {
	dial    func(context.Context) (net.Conn, error)
	tls     *tls.Config
	client  *goplugin.Client
	traffic *traffic
}

func (c *Connections) add(endpoint string, to target) {
	if to.tls != nil {
		to.tls = to.tls.Clone()
		to.tls.NextProtos = []string{"h2"} // gRPC servers require it
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

// DialOptions returns the options for a connection to an endpoint: plugins of go-plugin may send and receive messages of any size, as with
// the library's own host, and are not stopped while calls on the connection are in progress.
func (c *Connections) DialOptions(endpoint string) []grpc.DialOption {
	to, known := c.get(endpoint)
	if !known {
		return nil
	}
	return append(to.traffic.options(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
}

// Interceptor returns an interceptor that counts forwarded calls to an endpoint, as [Connections.DialOptions] does for calls of the host;
// nil if no plugin of go-plugin runs there.
func (c *Connections) Interceptor(endpoint string) grpc.StreamClientInterceptor {
	to, known := c.get(endpoint)
	if !known {
		return nil
	}
	return to.traffic.stream
}

// remove removes an endpoint if it belongs to the process with this traffic. A failed launch may have announced another process's endpoint.
func (c *Connections) remove(endpoint string, of *traffic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at[endpoint].traffic == of {
		delete(c.at, endpoint)
	}
}

// Dial connects to an endpoint, with TLS if it belongs to a running plugin of go-plugin that uses TLS, and otherwise as the registry does
// by default. It fails if nothing accepts there, if the TLS handshake fails, or if ctx is done first.
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

// Dispense returns the client that GRPCClient of a plugin in [Protocol].Config creates for the plugin at an endpoint. It uses the library's
// own connection and broker, in both directions, and belongs to one process of the plugin: after a restart, dispense again. Dispense may
// block until the plugin answers. It fails if no plugin of go-plugin runs there, and with the library's errors.
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

// Client returns the library's client of the plugin that serves at an endpoint; nil if there is none. The caller must not kill it.
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

// NotifyRegistrationStatus implements registerapi.RegistrationServer. It does nothing, because a plugin of go-plugin cannot be notified.
func (registration) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serve serves the plugin's registration at spec.PluginSocket, for this user only, until stop is called.
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
	serving.Go(func() { _ = server.Serve(listener) }) // returns after Stop
	return func() {
		server.Stop()
		serving.Wait()
	}, nil
}
