package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
	// Handlers say what to do with the plugins of a type. A type of [DefaultTypes] that is missing here is accepted, any other is refused
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
	// Bounds, MaxDepth, MaxSockets, MaxUserDirs, MaxDirs and UnreachableGrace are those of [patchbay.Config].
	Bounds                                     reconciler.Bounds
	MaxDepth, MaxSockets, MaxUserDirs, MaxDirs int
	UnreachableGrace                           time.Duration
	// IgnoreUnhandled leaves plugins of types that no handler is for alone, instead of telling them that they are refused.
	IgnoreUnhandled bool
	// Trust says whose directories and sockets are used, and who may register plugins of which types; see [patchbay.Config].
	Trust trust.Policy
	// NameGrace is how long the name of a plugin that went stays its user's; see [patchbay.Config].
	NameGrace time.Duration
	// Admission is the plugin that is asked whether a plugin may be registered; see [patchbay.Config]. Its final answers are forgotten by each
	// reload that succeeds. Without Args every plugin may be registered.
	Admission host.AdmissionSpec
	// LaunchedOnly refuses to register what the daemon did not launch; see [patchbay.Config].
	LaunchedOnly bool
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
	// Shown is all of the configuration as text for people, without secrets; empty if there is none.
	Shown string
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

// fieldErrors are what was found to be wrong.
type fieldErrors []error

func (w *fieldErrors) check(field string, err error) {
	if err != nil {
		*w = append(*w, &FieldError{field, err})
	}
}

// checkKeys checks the keys of a part that is a map.
func checkKeys[V any](w *fieldErrors, field string, part map[string]V, check func(key string) error) {
	for _, key := range slices.Sorted(maps.Keys(part)) {
		w.check(field+"."+key, check(key))
	}
}

// absolute returns the configuration with absolute paths: they mean the same whatever happens to the working directory.
func (c Config) absolute() (Config, error) {
	c.PluginDirs = slices.Clone(c.PluginDirs)
	paths := []*string{&c.DeprecatedPluginDir, &c.StatePath, &c.ControlSocket, &c.DispenseDir, &c.DeviceSocketDir}
	for i := range c.PluginDirs {
		paths = append(paths, &c.PluginDirs[i])
	}
	for _, path := range paths {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return c, fmt.Errorf("cannot tell where %s is: %w", *path, err)
		}
		*path = abs
	}
	return c, nil
}

// Validate says whether a daemon can work with the configuration on this machine: it looks up users, groups and programs, and opens
// nothing. An error joins one [FieldError] for each thing that is wrong.
func (c Config) Validate() error {
	c, err := c.absolute()
	if err != nil {
		return err
	}
	var wrong fieldErrors
	check := wrong.check
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
	c.Tracing.validate(check)
	if len(c.Admission.Args) > 0 && c.Admission.Args[0] == "" {
		check("admission.command", errors.New("the program of the admission plugin has an empty path: name a file, or no command at all"))
	}
	if len(c.Admission.Args) == 0 && c.Admission.Protocol == host.ProtocolCIPD {
		// Whoever chose a protocol wants to be asked; without a command everything would be admitted.
		check("admission.protocol", errors.New("there is no admission plugin that speaks it: name one with admission.command"))
	}
	checkKeys(&wrong, "trust.types", c.Trust.Types, validateType)
	c.Fleet.validate(check)
	checkKeys(&wrong, "handlers", c.Handlers, func(ptype string) error { return validateHandler(ptype, c.Handlers[ptype]) })
	checkKeys(&wrong, "typeTimeouts", c.TypeTimeouts, validateType)
	checkKeys(&wrong, "clientTimeouts", c.ClientTimeouts, validateTypeOrPlugin)
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

func (c Config) checkDispenseDir() error {
	if c.DispenseDir == "" {
		return nil
	}
	for _, dir := range c.pluginDirs() {
		if dir != "" && (within(c.DispenseDir, dir) || within(dir, c.DispenseDir)) {
			return fmt.Errorf("dispense directory %s and plugin directory %s lie one in the other, where a stable socket would be taken for "+
				"a plugin: choose another path", c.DispenseDir, dir)
		}
	}
	if length := len(c.DispenseDir); length > maxDispenseDir {
		return fmt.Errorf("the path of dispense directory %s has %d bytes, and the paths of sockets leave room for %d: choose a shorter one",
			c.DispenseDir, length, maxDispenseDir)
	}
	return nil
}

// checkPassed says what is wrong with the sockets that the service manager passed.
func (c Config) checkPassed() error {
	if l := c.HTTPListener; l != nil {
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok || !addr.IP.IsLoopback() {
			return fmt.Errorf("cannot serve HTTP on the socket %s that the service manager passed: it must listen on a loopback address, "+
				"for example ListenStream=127.0.0.1:8080", l.Addr())
		}
	}
	if l := c.ControlListener; l != nil {
		if _, ok := l.(*net.UnixListener); !ok {
			return fmt.Errorf("cannot serve the control API on the socket %s that the service manager passed: use ListenStream= with a path",
				l.Addr())
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
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// checkMachine says what of the configuration cannot be done on this machine, and concerns all: users and groups who are to have rights and
// do not exist, and an admission plugin that is not there.
func (c Config) checkMachine(check func(field string, err error)) {
	_, err := c.Roles.policy()
	for _, err := range joined(err) {
		field, _ := errors.AsType[*FieldError](err)
		check(field.Field, field.Err)
	}
	_, err = trust.New(c.Trust)
	for _, err := range joined(err) {
		field, _ := errors.AsType[*trust.FieldError](err)
		check("trust."+field.Field, field.Err)
	}
	if args := c.Admission.Args; len(args) > 0 && args[0] != "" {
		check("admission.command", checkProgram(args[0]))
	}
}

// CheckPlugins says which plugins cannot be launched on this machine as it is now: for want of a user, of a program, or of room in the path
// of a socket. A daemon runs with them all the same, and tries again: what is missing may come, and the others are not to wait for it. The
// error joins one *FieldError for each.
func (c Config) CheckPlugins() error {
	var wrong fieldErrors
	launched := toLaunch(c.Catalogue, nil)
	for i, p := range c.Catalogue.List() {
		path := fmt.Sprintf("plugins[%d].", c.Catalogue.Index(p.Name))
		wrong.check(path+"user", host.CheckUser(p.User, p.Group))
		wrong.check(path+"group", host.CheckGroup(p.Group))
		if len(c.PluginDirs) > 0 {
			wrong.check(path+"name", launched[i].CheckSocket(c.PluginDirs[0]))
		}
		if !p.Autostart {
			continue // what is started by request may be installed until then
		}
		wrong.check(path+"command", checkProgram(p.Command[0]))
		if p.Interpreter != "" {
			wrong.check(path+"interpreter", checkProgram(p.Interpreter))
		}
	}
	return errors.Join(wrong...)
}

// Warn says of a configuration that can be used what may not be meant; empty if there is nothing.
func (c Config) Warn() string {
	owners := c.Trust.Owners
	if len(c.Admission.Args) == 0 || c.LaunchedOnly || len(owners.Users)+len(owners.Groups) == 0 {
		return ""
	}
	types := slices.Collect(maps.Keys(c.handlers()))
	types = slices.DeleteFunc(types, func(ptype string) bool { _, named := c.Trust.Types[ptype]; return named })
	if len(types) == 0 {
		return ""
	}
	slices.Sort(types)
	return fmt.Sprintf("trust.owners may register plugins of the types %s with any program that is admitted for another type: "+
		"admission sees the program and the name, and not whose plugin it is; name in trust.types who may register each",
		strings.Join(types, ", "))
}

func checkProgram(program string) error {
	_, err := exec.LookPath(program)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err // which does not name the program a second time
	}
	return fmt.Errorf("program %q cannot be run on this machine: %w; install it, or name another", program, err)
}

// joined returns the errors that were joined; none for nil.
func joined(err error) []error {
	all, _ := err.(interface{ Unwrap() []error })
	if all == nil {
		return nil
	}
	return all.Unwrap()
}
