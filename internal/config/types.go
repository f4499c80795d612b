// Package config reads the configuration of the daemon: the file patchbay.yaml, the drop-ins in the directory conf.d next to it, the
// environment and the flags. Later sources override earlier ones.
//
// Each source is a layer: a tree of values with their origins. The layers are merged and then decoded into a [Config]; errors give the
// file, line and column of the value. The Go types of this package and of package catalogue are the only description of the format: tests
// generate the JSON schema and docs/reference/configuration.md from them.
//
// The package checks the form of the configuration and the catalogue. Package daemon checks everything else.
package config

import (
	_ "embed" // for the schema
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// The header of every file.
const (
	apiVersion = "patchbay.dev/v1alpha1"
	configKind = "Config"
)

// Config is the configuration of the daemon. The tags of its fields are:
//
//   - json: the key.
//   - required: the key must be there.
//   - enum: the allowed words.
//   - zero: a number or duration may be zero; all others must be greater.
//   - restart: a change needs a restart of the daemon; anything else can be reloaded.
//   - pattern: the regular expression that a text must match, or "command" for a program and its arguments.
type Config struct {
	// APIVersion is the version of the format: patchbay.dev/v1alpha1. Every file has it.
	APIVersion string `json:"apiVersion" required:"true" enum:"patchbay.dev/v1alpha1"`
	// Kind is Config. Every file has it.
	Kind string `json:"kind" required:"true" enum:"Config"`
	// PluginDirs are the directories in which plugins create their sockets. Missing ones are created. None may contain another.
	PluginDirs []string `json:"pluginDirs" restart:"true"`
	// DeprecatedPluginDir is an additional plugin directory, in which everything under kubernetes.io/ is ignored.
	DeprecatedPluginDir string `json:"deprecatedPluginDir" restart:"true"`
	// State is the file that remembers the registered plugins.
	State string `json:"state" restart:"true"`
	// ControlSocket is the path of the socket through which the other commands reach the daemon.
	ControlSocket string `json:"controlSocket" restart:"true"`
	// Control sets the permissions of users on the control socket.
	Control Control `json:"control"`
	// DispenseDir is the directory in which every plugin gets a stable socket, TYPE/NAME.sock, for programs in any language; empty for
	// none.
	DispenseDir string `json:"dispenseDir" restart:"true"`
	// HTTP is the loopback address and port for /livez, /readyz, /metrics and the status page, for example 127.0.0.1:8080; empty for
	// none.
	HTTP string `json:"http" restart:"true"`
	// Device configures the handler of kind device.
	Device Device `json:"device" restart:"true"`
	// Handlers are the kinds of handlers of plugin types. The kind accept only registers plugins; csi, device and dra also call them, as
	// the kubelet calls CSI drivers, device plugins and DRA drivers. The types CSIPlugin, DevicePlugin and DRAPlugin are handled without an
	// entry here; unhandled covers the others.
	Handlers map[string]string `json:"handlers"`
	// Unhandled is the treatment of plugins of all other types: refuse sends them a refusal, which makes some exit; ignore leaves them
	// alone, for example because they belong to another host that uses the same directory.
	Unhandled string `json:"unhandled" enum:"refuse,ignore" restart:"true"`
	// Log sets the level and format of the log.
	Log Log `json:"log"`
	// Timeouts bound the steps of a registration.
	Timeouts plugin.Timeouts `json:"timeouts"`
	// TypeTimeouts override timeouts for some plugin types.
	TypeTimeouts map[string]plugin.Timeouts `json:"typeTimeouts"`
	// ClientTimeouts are the timeouts that handlers get for their calls to plugins, by TYPE or TYPE/NAME; the latter overrides the former.
	// A registered plugin keeps the timeout with which it was registered.
	ClientTimeouts map[string]time.Duration `json:"clientTimeouts"`
	// Bounds limit what plugins may announce and how much of the plugin directories is searched.
	Bounds Bounds `json:"bounds" restart:"true"`
	// Trust sets whose plugin directories and sockets are used in addition to those of root and the daemon's user, and who may register
	// plugins of which types.
	Trust Trust `json:"trust" restart:"true"`
	// Admission configures the admission plugin, which decides whether a plugin may be launched or registered.
	Admission Admission `json:"admission" restart:"true"`
	// Tracing configures OpenTelemetry traces of registrations and of calls to plugins.
	Tracing Tracing `json:"tracing" restart:"true"`
	// UnreachableGrace is how long a plugin stays registered after its socket stopped accepting connections; 0s for not at all.
	UnreachableGrace time.Duration `json:"unreachableGrace" restart:"true" zero:"true"`
	// Fleet configures how nodes share information about their plugins.
	Fleet Fleet `json:"fleet" restart:"true"`
	// Plugins is the catalogue: the plugins that the daemon may launch.
	Plugins []catalogue.Plugin `json:"plugins"`
}

// AllPluginDirs returns PluginDirs and, if it is set, DeprecatedPluginDir.
func (c *Config) AllPluginDirs() []string {
	if c.DeprecatedPluginDir == "" {
		return c.PluginDirs
	}
	return append(slices.Clone(c.PluginDirs), c.DeprecatedPluginDir)
}

// Control sets the permissions of users on the control socket.
type Control struct {
	// Roles are granted to users and groups; of several, the highest counts. Root and the daemon's user always have the role admin. If no
	// user or group is named, members of the socket's group have the role operate; otherwise only the named users and groups have a role.
	// The mode of the socket must let them connect, too.
	Roles Roles `json:"roles"`
}

// Roles are granted to users and groups.
type Roles struct {
	// Read lets them see plugins, events, logs, devices and the fleet.
	Read Members `json:"read"`
	// Operate also lets them start and stop launched plugins, retry plugins, release names, allocate devices, and call plugins.
	Operate Members `json:"operate"`
	// Admin also lets them reload the configuration and inspect the daemon's process.
	Admin Members `json:"admin"`
}

// Members have a role.
type Members struct {
	// Users are names, or numbers in quotes.
	Users []string `json:"users"`
	// Groups are names, or numbers in quotes. The groups of a caller are those of its process.
	Groups []string `json:"groups"`
}

// Trust names the users and groups that are trusted in addition to root and the daemon's user, as trust.Policy does.
type Trust struct {
	// Owners may have sockets in a plugin directory, and their users may own directories there. They may register plugins of every type
	// that has no entry in types.
	Owners trust.Accounts `json:"owners"`
	// Types restrict plugin types: in addition to root and the daemon's user, only the named users and groups may register plugins of the
	// type. They may have sockets and directories too.
	Types map[string]trust.Type `json:"types"`
	// Sticky accepts a plugin directory that others may write to if it has the sticky bit (for example mode 1777). Any user can create
	// sockets there; only sockets of trusted users are used.
	Sticky bool `json:"sticky"`
	// NameGrace is how long a plugin's name stays reserved for its user after its last instance goes away; 0s for not at all. During that
	// time plugins of other users are refused that name, unless they are root's or the daemon's own, were launched by an entry of plugins
	// with exactly that name, or are of a type with supersede.
	NameGrace time.Duration `json:"nameGrace" zero:"true"`
}

// Policy returns t without NameGrace.
func (t Trust) Policy() trust.Policy {
	return trust.Policy{Owners: t.Owners, Types: t.Types, Sticky: t.Sticky}
}

// Device configures the handler of kind device.
type Device struct {
	// SocketDir is the directory in which the daemon serves kubelet.sock for device plugins that register the older way, and in which these
	// create their sockets; empty for none. The kubelet's is /var/lib/kubelet/device-plugins.
	SocketDir string `json:"socketDir"`
}

// Log sets the level and format of the log.
type Log struct {
	// Level is the lowest level that is logged.
	Level string `json:"level" enum:"info,debug,warn,error"`
	// Format is the format of the log; auto is text on a terminal and JSON elsewhere.
	Format string `json:"format" enum:"auto,text,json"`
}

// Bounds limit what plugins may announce and how much of the plugin directories is searched.
type Bounds struct {
	// Text is the maximum length in bytes of a type, name or endpoint. A version may have at most 64.
	Text int `json:"text"`
	// Versions is the maximum number of versions that a plugin may announce.
	Versions int `json:"versions"`
	// UserBytes is how many bytes all plugins of one user together may announce.
	UserBytes int `json:"userBytes"`
	// TotalBytes is how many bytes all plugins together may announce. As many as one user may have, but at most half, are reserved for
	// plugins of root and of the daemon's user.
	TotalBytes int `json:"totalBytes"`
	// MaxDepth is how many directories deep below a plugin directory a socket may be.
	MaxDepth int `json:"maxDepth"`
	// MaxSockets is the maximum number of sockets in one directory.
	MaxSockets int `json:"maxSockets"`
	// MaxUserDirs is how many directories of one user below the plugin directories are searched.
	MaxUserDirs int `json:"maxUserDirs"`
	// MaxDirs is how many directories below the plugin directories are searched in total. As many as one user may have, but at most half,
	// are reserved for those of root and the daemon's user.
	MaxDirs int `json:"maxDirs"`
}

// Admission configures the admission plugin, which decides whether a plugin may be launched or registered.
type Admission struct {
	// Command is the program of the admission plugin and its arguments. It inherits the environment of the daemon. Without it every plugin
	// is admitted.
	Command []string `json:"command"`
	// Protocol is the protocol of the admission plugin: that of Patchbay's SDK or that of CIPD.
	Protocol string `json:"protocol" enum:"patchbay,cipd"`
	// Timeout is how long the admission plugin may take to answer; without an answer the plugin in question is not admitted.
	Timeout time.Duration `json:"timeout"`
	// LaunchedOnly registers only plugins that the daemon launched; all others are sent a refusal. It applies without a command, too.
	LaunchedOnly bool `json:"launchedOnly"`
}

// Fleet configures how nodes share information about their plugins.
type Fleet struct {
	// Etcd is the cluster that stores the fleet. Without endpoints the node does not belong to a fleet.
	Etcd Etcd `json:"etcd"`
	// Node is the name of this node, unique in the fleet: letters, digits, ".", "-" and "_" (default: the host name).
	Node string `json:"node"`
	// Address is HOST:PORT at which other nodes reach this one (default: where fleet.serve.listen listens, with the host name if that is
	// every address).
	Address string `json:"address"`
	// Serve configures calls between the plugins of this node and other nodes.
	Serve FleetServe `json:"serve"`
	// Offers restrict which plugins nodes may offer. Without an entry every node may offer every plugin; otherwise this node calls a plugin
	// on another node only if an entry matches both.
	Offers []FleetOffer `json:"offers" reload:"true"`
	// Exclusive are plugin types or roles, for example csi-controller. Only one instance of each name may be active in the fleet. The list
	// must be the same on all nodes.
	Exclusive []string `json:"exclusive"`
	// Dispense are plugins, each as TYPE/NAME, that have a stable socket in dispenseDir wherever in the fleet they are. Calls prefer this
	// node.
	Dispense []string `json:"dispense"`
	// Labels describe the node so that clients can select it, for example zone: a. Keys and values have letters, digits, ".", "-", "_" and
	// "/".
	Labels map[string]string `json:"labels"`
	// Presence is how long the node counts as alive after its last sign of life, at least 2s. Etcd gets a renewal from each node every
	// third of it: 1,500 a second from 5,000 nodes with 10s.
	Presence time.Duration `json:"presence"`
	// Retention is how long the plugins of a dead node stay visible.
	Retention time.Duration `json:"retention"`
	// Drift is how long nodes may run different versions of a plugin until the condition fleet-versions is degraded. With it, the daemon
	// always follows the whole fleet: set it on the nodes that are to notice (default: 1h, while patchbay fleet or the status page is used
	// there).
	Drift time.Duration `json:"drift"`
}

// FleetOffer allows nodes to offer plugins. All of its keys must match. In a pattern, * matches any text without a slash, and the
// pattern "*" matches everything.
type FleetOffer struct {
	// Node is a pattern for the name of the node. The node's certificate must have that name.
	Node string `json:"node" required:"true"`
	// Types are patterns for the type, or role, of the plugin.
	Types []string `json:"types" required:"true"`
	// Names are patterns for the name of the plugin.
	Names []string `json:"names" required:"true"`
}

// FleetServe configures calls between the plugins of this node and other nodes.
type FleetServe struct {
	// Listen is HOST:PORT at which the daemon accepts calls from other nodes, for example 10.0.0.7:7443 or :7443; empty for none.
	Listen string `json:"listen"`
	// Cert is a file with the certificate of the node, for servers and clients, with the node's name as a DNS name. Calls to other nodes
	// present it too. The daemon reads it again when it changes, and also the key and the CA.
	Cert string `json:"cert"`
	// Key is the file with the key of that certificate.
	Key string `json:"key"`
	// CA is a file with the certificates that sign those of all nodes.
	CA string `json:"ca"`
	// ServerName is the DNS name in the certificates of other nodes; {node} is replaced by the name of the node (default: {node}).
	ServerName string `json:"serverName"`
	// Allow lists the calls from other nodes that are allowed. All others are denied.
	Allow []FleetAllow `json:"allow" reload:"true"`
}

// FleetAllow allows calls from other nodes. All of its keys must match. In a pattern, * matches any text without a slash, and the
// pattern "*" matches everything.
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

// Etcd configures the connection to etcd, and the keys under which it stores the fleet.
type Etcd struct {
	// Endpoints are the URLs of its members, for example https://10.0.0.1:2379.
	Endpoints []string `json:"endpoints"`
	// CA is a file with the certificates that sign etcd's certificates (default: the system's trusted certificates).
	CA string `json:"ca"`
	// Cert is a file with the certificate of the client. It is read again when it changes.
	Cert string `json:"cert"`
	// Key is the file with the key of that certificate.
	Key string `json:"key"`
	// ServerName is the name in the certificates of etcd, if that is not the host of the endpoint.
	ServerName string `json:"serverName"`
	// User is the user of etcd. It is not needed with a client certificate.
	User string `json:"user"`
	// PasswordFile is a file with the user's password in its first line. The daemon reads it for each connection.
	PasswordFile string `json:"passwordFile"`
	// Prefix is the prefix of every key.
	Prefix string `json:"prefix"`
	// Namespace separates fleets with one prefix: letters, digits, ".", "-" and "_".
	Namespace string `json:"namespace"`
	// Timeout bounds one request.
	Timeout time.Duration `json:"timeout"`
}

// Tracing configures OpenTelemetry traces.
type Tracing struct {
	// Endpoint is the URL of a collector that accepts OTLP over gRPC, for example http://127.0.0.1:4317. Without it nothing is traced.
	Endpoint string `json:"endpoint"`
	// Percent is the percentage of traces that are kept.
	Percent int `json:"percent" zero:"true"`
}

// The values allowed for some keys; the first of each is the default.
var (
	LogLevels  = []string{"info", "debug", "warn", "error"}
	LogFormats = []string{"auto", "text", "json"}
	Unhandled  = []string{"refuse", "ignore"}
)

// SetDefaults sets every field whose default is not zero. Defaults that depend on the user are not set.
func (c *Config) SetDefaults() {
	c.APIVersion, c.Kind = apiVersion, configKind
	c.Unhandled = Unhandled[0]
	c.Log = Log{Level: LogLevels[0], Format: LogFormats[0]}
	c.Timeouts = plugin.Timeouts{Dial: time.Second, GetInfo: 5 * time.Second, Notify: 5 * time.Second}
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

// schema is generated from the types; see generate_test.go.
//
//go:embed patchbay.schema.json
var schema []byte

// Schema returns the JSON schema (draft 2020-12) of the configuration file and of each drop-in.
func Schema() []byte { return slices.Clone(schema) }
