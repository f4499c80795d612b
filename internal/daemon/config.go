package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/daemon/stablesocket"
	"github.com/patchbay-dev/patchbay/internal/daemon/telemetry"
	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
	"github.com/patchbay-dev/patchbay/internal/launch/account"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/suggest"
	"github.com/patchbay-dev/patchbay/internal/systemd"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Options are the configuration of a [Daemon], and what the program adds to it.
type Options struct {
	// Loaded is the configuration. Its Catalogue has the plugins that are launched; the field Plugins is not used.
	config.Loaded
	// ControlListener and HTTPListener are sockets passed by the service manager, or nil. They replace ControlSocket, which must be the
	// path of the socket, and HTTP.
	ControlListener, HTTPListener net.Listener
	// Notifier reports the daemon's state to the service manager.
	Notifier *systemd.Notifier
	// Load reads the configuration again for [Daemon.Reload]; nil if that is not possible.
	Load func() (*config.Loaded, error)
	// SetLog is called when a reload changes the level or the format of the log.
	SetLog func(config.Log)
	// Build is the build of the program, for callers of the control API.
	Build Build
	// Logger is the daemon's log; nil for none.
	Logger *slog.Logger
}

type fieldErrors []error

func (w *fieldErrors) check(field string, err error) {
	if err != nil {
		*w = append(*w, &config.FieldError{Field: field, Err: err})
	}
}

func checkKeys[V any](w *fieldErrors, field string, part map[string]V, check func(key string) error) {
	for _, key := range slices.Sorted(maps.Keys(part)) {
		w.check(field+"."+key, check(key))
	}
}

// makeAbsolute makes the paths of a configuration absolute, so that they mean the same if the working directory changes.
func makeAbsolute(c *config.Loaded) error {
	c.PluginDirs = slices.Clone(c.PluginDirs)
	paths := []*string{&c.DeprecatedPluginDir, &c.State, &c.ControlSocket, &c.DispenseDir, &c.Device.SocketDir}
	for i := range c.PluginDirs {
		paths = append(paths, &c.PluginDirs[i])
	}
	return regular.Absolute(paths...)
}

// Validate returns an error if a daemon cannot use the configuration on this machine. It looks up users, groups and programs, but opens
// nothing. The error joins one [config.FieldError] for each value that is wrong.
func Validate(c config.Loaded) error {
	if err := makeAbsolute(&c); err != nil {
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
		check("pluginDirs", dirwatch.CheckRoots(c.AllPluginDirs()))
	}
	if c.State == "" {
		check("state", errors.New("the state file has an empty path: name a file"))
	}
	check("controlSocket", checkControlSocket(&c.Config))
	check("dispenseDir", checkDispenseDir(&c.Config))
	check("device.socketDir", checkDeviceSocketDir(&c.Config))
	if c.HTTP != "" {
		_, err := telemetry.ParseHTTPAddr(c.HTTP)
		check("http", err)
	}
	telemetry.ValidateTracing(c.Tracing, check)
	if len(c.Admission.Command) > 0 && c.Admission.Command[0] == "" {
		check("admission.command", errors.New("the program of the admission plugin has an empty path: name a file, or no command at all"))
	}
	if len(c.Admission.Command) == 0 && host.Protocol(c.Admission.Protocol) == host.ProtocolCIPD {
		// A protocol without a command would admit every plugin, which is probably not what is meant.
		check("admission.protocol", errors.New("there is no admission plugin to speak it: name one with admission.command"))
	}
	checkKeys(&wrong, "trust.types", c.Trust.Types, untrusted.CheckType)
	node.Validate(c.Fleet, check)
	if len(c.Fleet.Dispense) > 0 && c.DispenseDir == "" {
		check("fleet.dispense", errors.New("there is no directory for stable sockets: set dispenseDir"))
	}
	checkKeys(&wrong, "handlers", c.Handlers, func(ptype string) error { return validateHandler(ptype, c.Handlers[ptype]) })
	checkKeys(&wrong, "typeTimeouts", c.TypeTimeouts, untrusted.CheckType)
	checkKeys(&wrong, "clientTimeouts", c.ClientTimeouts, validateTypeOrPlugin)
	checkTypes(&c, check)
	checkMachine(&c.Config, check)
	return errors.Join(wrong...)
}

func checkControlSocket(c *config.Config) error {
	if c.ControlSocket == "" {
		return errors.New("the control socket has an empty path: name a file")
	}
	if length := len(c.ControlSocket); length > sock.MaxPath {
		return fmt.Errorf("control socket %s has %d bytes, and the path of a socket may have %d: choose a shorter one", c.ControlSocket,
			length, sock.MaxPath)
	}
	return checkApart(c, "control socket", c.ControlSocket)
}

func checkDispenseDir(c *config.Config) error {
	if c.DispenseDir == "" {
		return nil
	}
	if length := len(c.DispenseDir); length > stablesocket.MaxDir {
		return fmt.Errorf("the path of dispense directory %s has %d bytes, and the paths of sockets leave room for %d: choose a shorter one",
			c.DispenseDir, length, stablesocket.MaxDir)
	}
	return checkApart(c, "dispense directory", c.DispenseDir)
}

// checkPassed returns an error if a socket that the service manager passed cannot be used.
func (c *Options) checkPassed() error {
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

// checkApart returns an error if path and a plugin directory are the same, or one contains the other.
func checkApart(c *config.Config, what, path string) error {
	for _, plugins := range c.AllPluginDirs() {
		if plugins != "" && (within(path, plugins) || within(plugins, path)) {
			return fmt.Errorf("%s %s and plugin directory %s overlap, so sockets of one would be taken for those of the other: "+
				"choose another path", what, path, plugins)
		}
	}
	return nil
}

// within reports whether path is dir or below it. It returns false if it cannot tell.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// checkTypes checks that every type under which a launched plugin will register has a handler.
func checkTypes(c *config.Loaded, check func(field string, err error)) {
	handlers := handlerKinds(&c.Config)
	for _, p := range c.Catalogue.List() {
		field, ptype := "type", p.Type
		if p.Protocol != catalogue.ProtocolGoPlugin {
			field, ptype = "announce.type", p.Announce.Type
		}
		if _, handled := handlers[ptype]; ptype == "" || handled {
			continue
		}
		check(fmt.Sprintf("plugins[%d].%s", c.Catalogue.Index(p.Name), field), fmt.Errorf(
			"there is no handler for plugin type %s, so the plugin cannot be registered: add the type to handlers, for example as %s: accept%s",
			ptype, ptype, suggest.Hint(ptype, slices.Collect(maps.Keys(handlers)))))
	}
}

// checkMachine checks that the users and groups with rights exist on this machine, and that the admission plugin can be run.
func checkMachine(c *config.Config, check func(field string, err error)) {
	unknown := func(prefix string, err error) {
		for _, err := range joined(err) {
			field, _ := errors.AsType[*trustjudge.FieldError](err)
			check(prefix+field.Field, field.Err)
		}
	}
	_, err := access.NewPolicy(c.Control.Roles)
	unknown("", err)
	_, err = trustjudge.New(c.Trust.Policy())
	unknown("trust.", err)
	if args := c.Admission.Command; len(args) > 0 && args[0] != "" {
		check("admission.command", checkProgram(args[0]))
	}
}

// CheckPlugins returns an error for each plugin that cannot be launched on this machine now: a user, a directory or a program is missing,
// the program has another digest, or the path of a socket is too long. A daemon runs nevertheless and retries. The error joins one
// [config.FieldError] for each.
func CheckPlugins(c *config.Loaded) error {
	var wrong fieldErrors
	launched := toLaunch(c.Catalogue, nil)
	for i, p := range c.Catalogue.List() {
		path := fmt.Sprintf("plugins[%d].", c.Catalogue.Index(p.Name))
		badUser, badGroup := account.Check(p.User, p.Group)
		wrong.check(path+"user", badUser)
		wrong.check(path+"group", badGroup)
		if len(c.PluginDirs) > 0 {
			wrong.check(path+"name", launched[i].CheckSocket(c.PluginDirs[0]))
		}
		if !p.Autostart {
			continue // it may be installed before it is started
		}
		if err := checkProgram(p.Command[0]); err != nil {
			wrong.check(path+"command", err)
		} else if p.SHA256 != "" {
			wrong.check(path+"sha256", checkDigest(p.Command[0], p.SHA256))
		}
		wrong.check(path+"dir", checkDir(p.Dir))
		if p.Interpreter != "" {
			wrong.check(path+"interpreter", checkProgram(p.Interpreter))
		}
	}
	return errors.Join(wrong...)
}

// Warn returns a warning about a valid configuration that is probably unintended; empty for none.
func Warn(c *config.Config) string {
	owners := c.Trust.Owners
	if len(c.Admission.Command) == 0 || c.Admission.LaunchedOnly || len(owners.Users)+len(owners.Groups) == 0 {
		return ""
	}
	types := slices.Collect(maps.Keys(handlerKinds(c)))
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
	path, err := exec.LookPath(program)
	if err == nil {
		err = sealedexec.Check(path)
	}
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err // without the name of the program
	}
	return fmt.Errorf("program %q cannot be run on this machine: %w; install it, or name another", program, err)
}

func checkDigest(program, want string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	file, err := regular.Open(path)
	if err != nil {
		return fmt.Errorf("cannot tell whether program %q has this digest: %w; name a program that this user can read", program, err)
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return fmt.Errorf("cannot tell whether program %q has this digest: %w", program, err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return fmt.Errorf("program %q has the digest %s: correct the digest if that is the program you trust, or install the right one",
			path, got)
	}
	return nil
}

// checkDir returns an error if dir cannot be a plugin's working directory. An empty dir means the root directory.
func checkDir(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("not a directory")
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // without the path
	}
	if err != nil {
		return fmt.Errorf("the plugin cannot work in %s: %w; make the directory, or name another", dir, err)
	}
	return nil
}

// joined returns the errors that err joins; none if err is nil.
func joined(err error) []error {
	all, _ := err.(interface{ Unwrap() []error })
	if all == nil {
		return nil
	}
	return all.Unwrap()
}

func validateTypeOrPlugin(key string) error {
	if _, isPlugin := plugin.ParseName(key); !isPlugin && !untrusted.IsType(key) {
		return fmt.Errorf("%q is neither a plugin type nor a plugin: write TYPE or TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io",
			key)
	}
	return nil
}
