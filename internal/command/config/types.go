// Package config reads the configuration of the daemon: the file patchbay.yaml, the drop-ins of the directory conf.d beside it, and over
// them the environment and the flags.
//
// Each of these is a layer: a tree of values that know where they come from. The layers are merged and then decoded into a [Config], and
// whatever is wrong is said with the file, line and column of the value. The Go types of this package and of package catalogue
// are the one description of the format; the JSON schema and the reference in docs/reference/configuration.md are generated from them.
//
// The package checks the form of the configuration, and the catalogue. Whether the daemon can work with it is the business of
// package daemon.
package config

import (
	_ "embed" // for the schema
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/catalogue"
	"github.com/patchbay-dev/patchbay/trust"
)

// What every file says of itself.
const (
	apiVersion = "patchbay.dev/v1alpha1"
	configKind = "Config"
)

// Config is the configuration of the daemon. What the tags of its fields mean:
//
//   - json: the key.
//   - required: the key must be there.
//   - enum: the words that are allowed.
//   - zero: zero is allowed for a number or a duration, which else must be above it.
//   - restart: a change needs a restart of the daemon; anything else can be reloaded.
//   - pattern: the regular expression that a text has to match, or "command" for a program and its arguments.
type Config struct {
	// APIVersion is the version of the format: patchbay.dev/v1alpha1. Every file has it.
	APIVersion string `json:"apiVersion" required:"true" enum:"patchbay.dev/v1alpha1"`
	// Kind is Config. Every file has it.
	Kind string `json:"kind" required:"true" enum:"Config"`
	// PluginDirs are the directories in which plugins put their sockets. Those that do not exist are made. None may contain another.
	PluginDirs []string `json:"pluginDirs" restart:"true"`
	// DeprecatedPluginDir is one more plugin directory, in which everything under kubernetes.io/ is ignored.
	DeprecatedPluginDir string `json:"deprecatedPluginDir" restart:"true"`
	// State is the file that remembers the registered plugins.
	State string `json:"state" restart:"true"`
	// ControlSocket is the path of the socket on which the other commands reach the daemon.
	ControlSocket string `json:"controlSocket" restart:"true"`
	// Control says who may do what on the control socket.
	Control Control `json:"control"`
	// DispenseDir is the directory in which every plugin has a stable socket, TYPE/NAME.sock, for programs that are not Go; empty for none.
	DispenseDir string `json:"dispenseDir" restart:"true"`
	// HTTP is the loopback address and port on which /livez, /readyz and /metrics are served, for example 127.0.0.1:8080; empty for
	// nowhere.
	HTTP string `json:"http" restart:"true"`
	// Device says how the handler of kind device works.
	Device Device `json:"device" restart:"true"`
	// Handlers say, by plugin type, what to do with its plugins. The kind accept registers them and does nothing else;
	// csi also starts using CSI drivers, device device plugins, whose devices it allocates, and dra DRA drivers. The types CSIPlugin,
	// DevicePlugin and DRAPlugin are accepted without being named here; unhandled says what to do with others.
	Handlers map[string]string `json:"handlers"`
	// Unhandled says what to do with plugins of all other types: refuse tells them that there is no handler for them, on which some exit;
	// ignore leaves them alone, for example because they are those of another host that uses the same directory.
	Unhandled string `json:"unhandled" enum:"refuse,ignore" restart:"true"`
	// Log says what is logged, and how.
	Log Log `json:"log"`
	// Timeouts bound the steps of a registration.
	Timeouts Timeouts `json:"timeouts"`
	// TypeTimeouts go before timeouts for some plugin types.
	TypeTimeouts map[string]Timeouts `json:"typeTimeouts"`
	// ClientTimeouts are the timeouts for calls to plugins that their handlers are given, by TYPE or TYPE/NAME; the latter goes before the
	// former. A plugin that is registered keeps the one with which it was.
	ClientTimeouts map[string]time.Duration `json:"clientTimeouts"`
	// Bounds limit what plugins may announce, and what is looked for in the plugin directories.
	Bounds Bounds `json:"bounds" restart:"true"`
	// Trust says whose plugin directories and sockets are used, besides those of root and the daemon's user, and who may register plugins of
	// which types.
	Trust Trust `json:"trust" restart:"true"`
	// Admission says whom to ask whether a plugin may be registered.
	Admission Admission `json:"admission" restart:"true"`
	// Tracing says where OpenTelemetry traces of registrations, and of calls to plugins, go.
	Tracing Tracing `json:"tracing" restart:"true"`
	// UnreachableGrace is how long a plugin on whose socket nobody accepts stays registered; 0s for not at all.
	UnreachableGrace time.Duration `json:"unreachableGrace" restart:"true" zero:"true"`
	// Fleet says how this node and others know of each other's plugins.
	Fleet Fleet `json:"fleet" restart:"true"`
	// Plugins is the catalogue: the plugins that the daemon may launch.
	Plugins []catalogue.Plugin `json:"plugins"`
}

// Control says who may do what on the control socket.
type Control struct {
	// Roles are given to users and groups; who has several has the highest. Root and the daemon's user are always administrators. As long as
	// nobody is named, the members of the socket's group have the role operate; else only those who are named have one. Whoever is to connect
	// must also be let in by the mode of the socket.
	Roles Roles `json:"roles"`
}

// Roles are given to users and groups.
type Roles struct {
	// Read is to see plugins, events, logs, devices and the fleet.
	Read Members `json:"read"`
	// Operate is also to start and stop launched plugins, to retry plugins and release names, to allocate devices, and to call plugins.
	Operate Members `json:"operate"`
	// Admin is also to reload the configuration.
	Admin Members `json:"admin"`
}

// Members have a role.
type Members struct {
	// Users are names, or numbers in quotes.
	Users []string `json:"users"`
	// Groups are names, or numbers in quotes. The groups of a caller are those of its process.
	Groups []string `json:"groups"`
}

// Trust says who is trusted besides root and the user of the daemon, as trust.Policy does.
type Trust struct {
	// Owners may have sockets in a plugin directory, and its users directories, and may register plugins of every type that types does not
	// name.
	Owners trust.Accounts `json:"owners"`
	// Types say, by plugin type, who besides root and the user of the host may register plugins of it; nobody else may. They may have
	// sockets and directories too.
	Types map[string]trust.Type `json:"types"`
	// Sticky says that a directory in which others may make files can be a plugin directory if it has the sticky bit (mode 1777, for
	// example): everybody can make sockets there, of which those of trusted users are used.
	Sticky bool `json:"sticky"`
	// NameGrace is how long the name of a plugin stays its user's after its last instance has gone; 0s for not at all. Plugins of other users
	// that announce it are refused meanwhile, unless they are root's or the daemon's own, are launched by an entry of plugins with that very
	// name, or are of a type with supersede.
	NameGrace time.Duration `json:"nameGrace" zero:"true"`
}

// Device says how the handler of kind device works.
type Device struct {
	// SocketDir is the directory in which kubelet.sock is served for device plugins that register the older way, and in which these have
	// their sockets; empty for none. The kubelet's is /var/lib/kubelet/device-plugins.
	SocketDir string `json:"socketDir"`
}

// Log says what is logged, and how.
type Log struct {
	// Level is the least level that is logged.
	Level string `json:"level" enum:"info,debug,warn,error"`
	// Format is the form of the log; auto is text on a terminal and JSON elsewhere.
	Format string `json:"format" enum:"auto,text,json"`
}

// Timeouts bound the steps of a registration.
type Timeouts struct {
	// Dial bounds one connect to a socket.
	Dial time.Duration `json:"dial"`
	// GetInfo bounds the call that asks a plugin who it is.
	GetInfo time.Duration `json:"getInfo"`
	// Notify bounds the call that tells a plugin whether it is registered.
	Notify time.Duration `json:"notify"`
	// Handler bounds one registration by a handler that can be interrupted (default: no bound).
	Handler time.Duration `json:"handler"`
}

// Bounds limit what plugins may announce, and what is looked for in the plugin directories.
type Bounds struct {
	// Text is the greatest length in bytes of a type, name or endpoint. A version may have 64 at most.
	Text int `json:"text"`
	// Versions is the greatest number of versions.
	Versions int `json:"versions"`
	// UserBytes is how many bytes all plugins of one user may announce.
	UserBytes int `json:"userBytes"`
	// TotalBytes is how many bytes all plugins may announce. The last of them, as many as one user may have, but at most half, are for
	// plugins of root and of the daemon's user.
	TotalBytes int `json:"totalBytes"`
	// MaxDepth is the greatest number of directories below a plugin directory on the way to a socket.
	MaxDepth int `json:"maxDepth"`
	// MaxSockets is the greatest number of sockets in one directory.
	MaxSockets int `json:"maxSockets"`
	// MaxUserDirs is the greatest number of directories below the plugin directories of one user that are searched.
	MaxUserDirs int `json:"maxUserDirs"`
	// MaxDirs is the greatest number of directories below the plugin directories that are searched. The last of them, as many as one user may
	// have, but at most half, are for those of root and the daemon's user.
	MaxDirs int `json:"maxDirs"`
}

// Admission says whom to ask whether a plugin may be registered.
type Admission struct {
	// Command is the program of the admission plugin and its arguments. It has the environment of the daemon. Without it every plugin may
	// be registered.
	Command []string `json:"command"`
	// Protocol is what the admission plugin speaks: that of Patchbay's SDK or that of CIPD.
	Protocol string `json:"protocol" enum:"patchbay,cipd"`
	// Timeout is how long the admission plugin may take for an answer; without one the plugin that it was asked for is not registered.
	Timeout time.Duration `json:"timeout"`
	// LaunchedOnly says that only plugins are registered that the daemon launched; others are refused, and told so. It holds without a command
	// too.
	LaunchedOnly bool `json:"launchedOnly"`
}

// Fleet says how this node and others know of each other's plugins.
type Fleet struct {
	// Etcd is where the fleet is kept. Without endpoints the node belongs to no fleet.
	Etcd Etcd `json:"etcd"`
	// Node is the name of this node, which no other may have: letters, digits, ".", "-" and "_" (default: the host name).
	Node string `json:"node"`
	// Address is HOST:PORT at which other nodes reach this one (default: where fleet.serve.listen listens, with the host name if that is
	// every address).
	Address string `json:"address"`
	// Serve says how this node and others call each other's plugins.
	Serve FleetServe `json:"serve"`
	// Exclusive are the types, or roles, of plugins of which only one instance of a name in the fleet may be active, for example
	// csi-controller. It has to be the same on all nodes.
	Exclusive []string `json:"exclusive"`
	// Presence is how long the node counts as alive after its last sign of life, at least 2s.
	Presence time.Duration `json:"presence"`
	// Retention is how long the plugins of a dead node stay visible.
	Retention time.Duration `json:"retention"`
}

// FleetServe says how this node and others call each other's plugins.
type FleetServe struct {
	// Listen is HOST:PORT at which calls from other nodes are taken, for example 10.0.0.7:7443 or :7443; empty for none.
	Listen string `json:"listen"`
	// Cert is a file with the certificate of the node, for servers and clients, with its name as DNS name. It is also shown to nodes that
	// are called. It is read again when it changes, as are the key and the CA.
	Cert string `json:"cert"`
	// Key is the file with the key of that certificate.
	Key string `json:"key"`
	// CA is a file with the certificates that sign those of all nodes.
	CA string `json:"ca"`
	// ServerName is the DNS name that the certificates of other nodes have; {node} stands for the name of the node (default: {node}).
	ServerName string `json:"serverName"`
	// Allow says who may call what on this node. What no entry allows is denied.
	Allow []FleetAllow `json:"allow" reload:"true"`
}

// FleetAllow allows calls from other nodes. All of its keys have to match. In a pattern * stands for any text without a slash, and a
// pattern that is only "*" matches everything.
type FleetAllow struct {
	// Identity is a pattern for the caller: the URI in its certificate, else its DNS name, else its common name.
	Identity string `json:"identity" required:"true"`
	// Types are patterns for the type, or role, of the plugin.
	Types []string `json:"types" required:"true"`
	// Names are patterns for the name of the plugin.
	Names []string `json:"names" required:"true"`
	// Methods are patterns for SERVICE/METHOD, for example csi.v1.Controller/*.
	Methods []string `json:"methods" required:"true"`
}

// Etcd says how etcd is reached, and where in it the fleet is kept.
type Etcd struct {
	// Endpoints are the URLs of its members, for example https://10.0.0.1:2379.
	Endpoints []string `json:"endpoints"`
	// CA is a file with the certificates that sign those of etcd (default: those that the system trusts).
	CA string `json:"ca"`
	// Cert is a file with the certificate of the client. It is read again when it changes.
	Cert string `json:"cert"`
	// Key is the file with the key of that certificate.
	Key string `json:"key"`
	// ServerName is the name in the certificates of etcd, if that is not the host of the endpoint.
	ServerName string `json:"serverName"`
	// User is the user of etcd. With a client certificate it is not needed.
	User string `json:"user"`
	// PasswordFile is a file with the user's password in its first line. It is read for each connection.
	PasswordFile string `json:"passwordFile"`
	// Prefix begins every key.
	Prefix string `json:"prefix"`
	// Namespace separates fleets with one prefix: letters, digits, ".", "-" and "_".
	Namespace string `json:"namespace"`
	// Timeout bounds one request.
	Timeout time.Duration `json:"timeout"`
}

// Tracing says where OpenTelemetry traces go.
type Tracing struct {
	// Endpoint is the URL of a collector that takes OTLP over gRPC, for example http://127.0.0.1:4317. Without it nothing is traced.
	Endpoint string `json:"endpoint"`
	// Percent is how many of a hundred traces are kept.
	Percent int `json:"percent" zero:"true"`
}

// Words are the values that are allowed for some keys; the first of each is the default.
var (
	LogLevels  = []string{"info", "debug", "warn", "error"}
	LogFormats = []string{"auto", "text", "json"}
	Unhandled  = []string{"refuse", "ignore"}
)

// SetDefaults sets every field for which zero is not the default and that does not depend on the user.
func (c *Config) SetDefaults() {
	c.APIVersion, c.Kind = apiVersion, configKind
	c.Unhandled = Unhandled[0]
	c.Log = Log{Level: LogLevels[0], Format: LogFormats[0]}
	c.Timeouts = Timeouts{Dial: time.Second, GetInfo: 5 * time.Second, Notify: 5 * time.Second}
	c.Trust.NameGrace = 10 * time.Minute
	c.Tracing = Tracing{Percent: 100}
	c.Fleet = Fleet{
		Etcd: Etcd{Prefix: "/patchbay", Namespace: "default", Timeout: 5 * time.Second}, Presence: 10 * time.Second, Retention: time.Hour,
	}
	c.Admission = Admission{Protocol: "patchbay", Timeout: time.Minute}
	c.Bounds = Bounds{
		Text: 4096, Versions: 64, UserBytes: 4 << 20, TotalBytes: 16 << 20,
		MaxDepth: 16, MaxSockets: 10_000, MaxUserDirs: 6_000, MaxDirs: 20_000,
	}
}

// schema is generated from the types by the tests; see generate_test.go.
//
//go:embed patchbay.schema.json
var schema []byte

// Schema returns the JSON schema (draft 2020-12) of the configuration file and of each drop-in.
func Schema() []byte { return slices.Clone(schema) }
