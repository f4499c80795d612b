package goplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// Plugin says how a plugin is launched and as what it is registered.
type Plugin struct {
	// CookieKey and CookieValue are the magic cookie: the environment variable by which the plugin knows that a host has started it.
	CookieKey, CookieValue string
	// ProtocolVersions are the versions of the plugin's services that its users understand. The plugin picks the newest that it knows,
	// which it is then registered with.
	ProtocolVersions []int
	// Type and Name are what the plugin is registered as.
	Type, Name string
	// AutoMTLS secures the connection with certificates for this one launch: nobody but this process can call the plugin.
	AutoMTLS bool
	// Connections learns how the plugin is reached.
	Connections *Connections
}

const (
	// startTimeout is how long a plugin may take to say where it serves.
	startTimeout = time.Minute
	// maxError bounds the errors of the library.
	maxError = 512
)

// Launch launches the plugin with a host and serves its registration at spec.PluginSocket for as long as it runs. It blocks until the
// plugin has said where it serves, which it may take a minute for, and answers there; the end of ctx, or an error, ends the process.
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
	private, err := privateDir(filepath.Dir(spec.PluginSocket))
	if err != nil {
		return nil, err
	}
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	l, err := newLife(p, spec)
	if err != nil {
		return nil, err
	}
	defer close(l.settled)
	l.config = &goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{MagicCookieKey: p.CookieKey, MagicCookieValue: p.CookieValue},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, dir string) (runner.Runner, error) {
			l.dir, l.spec.OwnDir, l.spec.Env = dir, dir, slices.Concat(spec.Env, cmd.Env)
			return &process{life: l, start: func() error { return l.start(ctx, h) }}, nil
		},
		VersionedPlugins: p.versions(),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         p.AutoMTLS,
		SkipHostEnv:      true,
		StartTimeout:     startTimeout,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: private},
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx) }),
		},
		SyncStdout: l.stdout.write,
		SyncStderr: l.stderr.write,
		Logger:     hclog.NewNullLogger(),
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

// versions are the plugins that the library asks for. What it is asked to dispense does not matter: its connection is used as it is.
func (p *Plugin) versions() map[int]goplugin.PluginSet {
	versions := map[int]goplugin.PluginSet{}
	for _, v := range p.ProtocolVersions {
		versions[v] = goplugin.PluginSet{p.Name: &goplugin.NetRPCUnsupportedPlugin{}}
	}
	return versions
}

// oneLine makes one line of an error of the library, which may have in it whatever the plugin has printed.
func oneLine(err error) string {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	return foreign.Cut(text, maxError)
}
