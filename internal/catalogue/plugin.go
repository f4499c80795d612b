package catalogue

import (
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/launch"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Plugin is one plugin that the daemon may launch.
type Plugin struct {
	// Name is the plugin's name, unique in the catalogue. It has at most 63 letters, digits, dots, dashes and underscores, and begins
	// and ends with a letter or digit.
	Name string `json:"name" required:"true"`
	// Version is shown to people, for example "1.4.2".
	Version string `json:"version"`
	// Command is the program and its arguments. The program is an absolute path, or a name that is looked up in PATH on each start.
	Command []string `json:"command" required:"true"`
	// SHA256 is the digest that the program must have, as 64 hexadecimal digits. Without one, the program may have any content.
	SHA256 string `json:"sha256"`
	// Interpreter is the absolute path of the program that runs the plugin. A script needs it if it has a sha256 or must be admitted, and
	// must name the same interpreter in its first line.
	Interpreter string `json:"interpreter"`
	// Metadata is available to the plugin and shown when it is listed.
	Metadata map[string]string `json:"metadata"`
	// Env is the environment of the process. Nothing is inherited from the daemon.
	Env map[string]string `json:"env"`
	// Dir is the working directory, an absolute path (default: the root directory).
	Dir string `json:"dir"`
	// Protocol is the protocol between the plugin and the daemon.
	Protocol Protocol `json:"protocol" enum:"patchbay,go-plugin"`
	// Type is the type with which a go-plugin plugin is registered. All other plugins announce their own.
	Type string `json:"type"`
	// GoPlugin is what a go-plugin plugin needs from its host.
	GoPlugin GoPlugin `json:"goPlugin"`
	// Limits bound the resources of the process and its descendants.
	Limits Limits `json:"limits"`
	// User is the name or number of the user that the process runs as (default: the daemon's).
	User string `json:"user"`
	// Group is the name or number of the group that the process runs as (default: that of the user).
	Group string `json:"group"`
	// Restart controls whether and when the plugin is restarted after its process has exited.
	Restart plugin.RestartPolicy `json:"restart"`
	// Health controls the health checks of a plugin that serves grpc.health.v1.
	Health plugin.HealthCheck `json:"health"`
	// Upgrade controls when the old process is stopped if a new one replaces it: when the new one is registered, when the new one serves
	// behind a socket that stays, or before the new one is started.
	Upgrade plugin.Upgrade `json:"upgrade" enum:"side-by-side,handover,recreate"`
	// StartTimeout is how long a process that serves may take from its start until it is registered. After that it is stopped, which counts
	// as a failure. If it was to replace another process, that process keeps running.
	StartTimeout time.Duration `json:"startTimeout"`
	// StopTimeout is how long the process may take to stop when asked to, before it is killed.
	StopTimeout time.Duration `json:"stopTimeout"`
	// Survive lets the process outlive the daemon, to be adopted by the next one.
	Survive bool `json:"survive"`
	// Autostart starts the plugin together with the daemon. Without it, the plugin is started by hand.
	Autostart bool `json:"autostart"`
	// Start controls whether the plugin is started immediately or by the first call.
	Start Start `json:"start" enum:"auto,onDemand"`
	// Idle is how long a plugin that is started by the first call keeps running without a call.
	Idle time.Duration `json:"idle"`
	// Announce is the type, name and versions with which a plugin that is started by the first call is registered before it has run
	// (default: those that it announced last; if they are not known, the plugin is started once to learn them).
	Announce Announce `json:"announce"`
	// Serve gives the plugin the path for a socket in a plugin directory, where it is discovered and registered.
	Serve bool `json:"serve"`
	// LogRate is how many lines of output are logged per second (default: the host's limit). Excess lines are dropped and counted.
	LogRate int `json:"logRate"`
}

// Limits bound the resources of a process and its descendants. Zero means no limit.
type Limits struct {
	// Memory is an amount in bytes, for example 512Mi or 2G.
	Memory Bytes `json:"memory"`
	// CPU is a number of processors, for example 2, 0.5 or 500m.
	CPU CPU `json:"cpu"`
	// Processes is the number of processes and threads that may exist at a time.
	Processes int `json:"processes"`
	// OpenFiles is the number of descriptors that each process may have open.
	OpenFiles int `json:"openFiles"`
}

// Start is when a plugin is started.
type Start string

// When a plugin is started.
const (
	// StartAuto starts the plugin immediately.
	StartAuto Start = "auto"
	// StartOnDemand starts the plugin with the first call. The daemon listens on the plugin's socket and forwards calls.
	StartOnDemand Start = "onDemand"
)

// Announce is the registration of a plugin.
type Announce struct {
	// Type is the plugin's type, for example csi.
	Type string `json:"type"`
	// Name is the plugin's name.
	Name string `json:"name"`
	// Versions are the versions that the plugin supports.
	Versions []string `json:"versions"`
}

func (a Announce) isSet() bool { return a.Type+a.Name != "" || len(a.Versions) > 0 }

// SetDefaults sets every field whose default is not zero. Call it before setting the configured fields.
func (p *Plugin) SetDefaults() {
	p.Autostart = true
	p.Serve = true
	p.Protocol = ProtocolPatchbay
	p.GoPlugin.AutoMTLS = true
	p.Upgrade = plugin.UpgradeSideBySide
	p.Start = StartAuto
	p.Idle = launch.DefaultIdle
	p.StartTimeout = launch.DefaultStartTimeout
	p.StopTimeout = launch.DefaultStopTimeout
	p.Health = plugin.HealthCheck{
		Interval: launch.DefaultHealthInterval, Timeout: launch.DefaultHealthTimeout, Misses: launch.DefaultHealthMisses,
	}
	p.Restart = plugin.RestartPolicy{
		Policy:  plugin.RestartOnFailure,
		Backoff: plugin.Backoff{Min: launch.DefaultMinBackoff, Max: launch.DefaultMaxBackoff},
		Limit:   launch.DefaultRestartLimit,
		Window:  launch.DefaultRestartWindow,
	}
}

// Protocol is the protocol between a plugin and the daemon.
type Protocol string

// The protocols.
const (
	// ProtocolPatchbay: the plugin registers itself, with or without Patchbay's handshake.
	ProtocolPatchbay Protocol = "patchbay"
	// ProtocolGoPlugin: the plugin uses github.com/hashicorp/go-plugin and serves gRPC.
	ProtocolGoPlugin Protocol = "go-plugin"
)

// GoPlugin is what a go-plugin plugin needs from its host: what other hosts put into their HandshakeConfig.
type GoPlugin struct {
	// CookieKey is the name of the environment variable with the magic cookie.
	CookieKey string `json:"cookieKey"`
	// CookieValue is the value of the magic cookie.
	CookieValue string `json:"cookieValue"`
	// ProtocolVersions are the versions that the plugin's callers understand. The plugin chooses the newest that it knows, and is
	// registered with that version.
	ProtocolVersions []int `json:"protocolVersions"`
	// Plugin is the name under which the plugin is registered, for example the one by which other hosts dispense it (default: name).
	Plugin string `json:"plugin"`
	// AutoMTLS secures the connection with certificates that only the daemon and the plugin have.
	AutoMTLS bool `json:"autoMTLS"`
}

func (g GoPlugin) isSet() bool {
	return g.CookieKey+g.CookieValue+g.Plugin != "" || len(g.ProtocolVersions) > 0
}

func (p *Plugin) checkProtocol(check func(ok bool, field, format string, args ...any)) {
	if p.Protocol != ProtocolGoPlugin {
		check(p.Protocol == ProtocolPatchbay, "protocol", "%q must be one of %s, %s", p.Protocol, ProtocolPatchbay, ProtocolGoPlugin)
		check(p.Type == "", "type", "it is for protocol: go-plugin only")
		check(!p.GoPlugin.isSet(), "goPlugin", "it is for protocol: go-plugin only")
		return
	}
	g := p.GoPlugin
	check(untrusted.IsType(p.Type), "type", "%q %s", p.Type, untrusted.TypeSyntax)
	check(g.CookieKey != "" && !strings.ContainsAny(g.CookieKey, "=\x00"), "goPlugin.cookieKey",
		"%q is not a variable name: it must not be empty or have = in it", g.CookieKey)
	check(g.CookieValue != "" && !strings.Contains(g.CookieValue, "\x00"), "goPlugin.cookieValue",
		"it must not be empty or have a NUL character")
	check(len(g.ProtocolVersions) > 0, "goPlugin.protocolVersions", "it must name at least one")
	if i := slices.IndexFunc(g.ProtocolVersions, func(v int) bool { return v <= 0 }); i >= 0 {
		check(false, "goPlugin.protocolVersions", "%d must be above zero", g.ProtocolVersions[i])
	}
	check(untrusted.Printable(g.Plugin), "goPlugin.plugin", "%q must have printable characters only", g.Plugin)
	check(p.Serve, "serve", "a plugin of go-plugin always serves")
	check(!p.Survive, "survive", "a plugin of go-plugin cannot: its certificates and its registration are the daemon's")
}
