package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/catalogue"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/systemd"
	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// Config is what a [Daemon] works with.
type Config struct {
	// PluginDirs are the directories in which sockets of plugins are found; at least one. Missing ones are made, with mode 0750.
	PluginDirs []string
	// DeprecatedPluginDir is one more, in which everything under kubernetes.io/ is ignored; empty for none.
	DeprecatedPluginDir string
	// StatePath is the file that remembers registered plugins. It is made with mode 0600, its directory with 0750.
	StatePath string
	// ControlSocket is the path of the control socket. It is made with mode 0660, its directory with 0755.
	ControlSocket string
	// Roles say who may do how much on the control socket.
	Roles Roles
	// DispenseDir is the directory in which every plugin has a stable socket, TYPE/NAME.sock, for consumers that are not Go; empty for none.
	// It is made with mode 0750, the sockets with 0660.
	DispenseDir string
	// DeviceSocketDir is the directory in which kubelet.sock is served for device plugins that register the older way, if there is a handler
	// of kind [HandlerDevice]; empty for none. It is made with mode 0750, the socket with 0600.
	DeviceSocketDir string
	// Handlers say what becomes of the plugins of a type. A type of [DefaultTypes] that is missing here is accepted, any other is refused
	// or, with IgnoreUnhandled, left alone.
	Handlers map[string]HandlerKind
	// HTTPAddr is where /livez and /readyz are served over HTTP, as HOST:PORT; empty for nowhere. The host is a loopback address or
	// localhost, which is 127.0.0.1. Everyone on the machine may ask.
	HTTPAddr string
	// Timeouts bound the steps of a registration, TypeTimeouts those of some plugin types; see [patchbay.Config].
	Timeouts     reconciler.Timeouts
	TypeTimeouts map[string]reconciler.Timeouts
	// ClientTimeouts are the timeouts for calls to plugins that their handlers are given, by TYPE or TYPE/NAME; the latter goes before the
	// former. Those that are not here have none.
	ClientTimeouts map[string]time.Duration
	// Bounds, MaxDepth, MaxSockets and UnreachableGrace are those of [patchbay.Config].
	Bounds               reconciler.Bounds
	MaxDepth, MaxSockets int
	UnreachableGrace     time.Duration
	// IgnoreUnhandled leaves plugins of types that no handler is for alone, instead of telling them that they are refused.
	IgnoreUnhandled bool
	// Trust says whose directories and sockets are used, and who may register plugins of which types; see [patchbay.Config].
	Trust trust.Policy
	// Admission is the plugin that is asked whether a plugin may be registered; see [patchbay.Config]. Its final answers are forgotten by each
	// reload that succeeds. Without Args every plugin may be registered.
	Admission host.AdmissionSpec
	// Fleet is the fleet that the node belongs to.
	Fleet FleetConfig
	// Catalogue has the plugins that are launched; nil for none.
	Catalogue *catalogue.Catalogue
	// ControlListener and HTTPListener are sockets that the service manager passed, which take the place of ControlSocket, whose path has
	// to be the same, and HTTPAddr; nil if it passed none. Notifier tells it what the daemon does.
	ControlListener, HTTPListener net.Listener
	Notifier                      *systemd.Notifier
	// Load reads the configuration anew, for [Daemon.Reload]. Nil: there is nothing to read. Of what it returns, what Build, Logger and the
	// functions are does not matter.
	Load func() (Config, error)
	// Tracing says where traces of registrations and of calls to plugins go.
	Tracing Tracing
	// Log says how the Logger is set; SetLog is told when a reload changes that.
	Log    Log
	SetLog func(Log)
	// Build identifies the program to callers of the control API.
	Build Build
	// Logger is told what the daemon does; nil for no log.
	Logger *slog.Logger
}

// Log says how much is logged, and in which form, in words that are those of the program.
type Log struct{ Level, Format string }

// FieldError says what is wrong with one part of a [Config].
type FieldError struct {
	// Field is the path of the part in the configuration file, for example "handlers.MyPlugin".
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// Validate says whether a daemon can work with the configuration on this machine: it looks up users, groups and programs, and opens
// nothing. An error joins one [FieldError] for each thing that is wrong.
func (c Config) Validate() error {
	var wrong []error
	check := func(field string, err error) {
		if err != nil {
			wrong = append(wrong, &FieldError{field, err})
		}
	}
	switch {
	case len(c.PluginDirs) == 0:
		check("pluginDirs", errors.New("no plugin directory is configured: name at least one"))
	case slices.Contains(c.PluginDirs, ""):
		check("pluginDirs", errors.New("a plugin directory has an empty path: name a directory"))
	default:
		check("pluginDirs", c.checkNested())
	}
	if c.StatePath == "" {
		check("state", errors.New("the state file has an empty path: name a file"))
	}
	check("controlSocket", c.checkControlSocket())
	check("", c.checkPassed())
	check("dispenseDir", c.checkDispenseDir())
	check("device.socketDir", c.checkDeviceSocketDir())
	if c.HTTPAddr != "" {
		_, err := parseHTTPAddr(c.HTTPAddr)
		check("http", err)
	}
	check("tracing.endpoint", c.Tracing.check())
	check("tracing.percent", c.Tracing.checkPercent())
	if len(c.Admission.Args) > 0 && c.Admission.Args[0] == "" {
		check("admission.command", errors.New("the program of the admission plugin has an empty path: name a file, or no command at all"))
	}
	if len(c.Admission.Args) == 0 && c.Admission.Protocol == host.ProtocolCIPD {
		// Whoever chose a protocol wants to be asked; without a command everything would be admitted.
		check("admission.protocol", errors.New("there is no admission plugin that speaks it: name one with admission.command"))
	}
	for _, ptype := range slices.Sorted(maps.Keys(c.Trust.Types)) {
		check("trust.types."+ptype, validateType(ptype))
	}
	c.Fleet.validate(check)
	for _, ptype := range slices.Sorted(maps.Keys(c.Handlers)) {
		check("handlers."+ptype, validateHandler(ptype, c.Handlers[ptype]))
	}
	for _, ptype := range slices.Sorted(maps.Keys(c.TypeTimeouts)) {
		check("typeTimeouts."+ptype, validateType(ptype))
	}
	for _, key := range slices.Sorted(maps.Keys(c.ClientTimeouts)) {
		check("clientTimeouts."+key, validateTypeOrPlugin(key))
	}
	c.checkMachine(check)
	return errors.Join(wrong...)
}

func (c Config) checkControlSocket() error {
	if c.ControlSocket == "" {
		return errors.New("the control socket has an empty path: name a file")
	}
	if length := len(c.ControlSocket); length > sock.MaxPath {
		return fmt.Errorf("control socket %s has %d bytes, and the path of a socket may have %d: choose a shorter one", c.ControlSocket,
			length, sock.MaxPath)
	}
	for _, dir := range c.pluginDirs() {
		if dir != "" && within(c.ControlSocket, dir) {
			return fmt.Errorf("control socket %s lies in plugin directory %s, where it would be taken for a plugin: choose another path",
				c.ControlSocket, dir)
		}
	}
	return nil
}

func (c Config) checkNested() error {
	if outer, inner, ok := nested(c.pluginDirs()); ok {
		return fmt.Errorf("plugin directory %s contains plugin directory %s: name only the outer one", outer, inner)
	}
	return nil
}

// pluginDirs returns all plugin directories.
func (c Config) pluginDirs() []string {
	if c.DeprecatedPluginDir == "" {
		return c.PluginDirs
	}
	return append(slices.Clone(c.PluginDirs), c.DeprecatedPluginDir)
}

// nested looks for a directory that is or contains another one, judging by their paths.
func nested(dirs []string) (outer, inner string, found bool) {
	for i, outer := range dirs {
		for j, inner := range dirs {
			if i != j && within(inner, outer) {
				return outer, inner, true
			}
		}
	}
	return "", "", false
}

// within says whether a path is a directory or lies below it. What cannot be told is left to those who open it.
func within(path, dir string) bool {
	absPath, pathErr := filepath.Abs(path)
	absDir, dirErr := filepath.Abs(dir)
	if pathErr != nil || dirErr != nil {
		return false
	}
	rel, err := filepath.Rel(absDir, absPath)
	return err == nil && filepath.IsLocal(rel)
}
