package command

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

// The environment variables of paths. Every other flag of "patchbay run" with one value has one too; see [EnvOf].
const (
	ConfigEnv        = "PATCHBAY_CONFIG"
	controlSocketEnv = "PATCHBAY_CONTROL_SOCKET"
)

// EnvOf returns the environment variable that sets a flag.
func EnvOf(flag string) string {
	return "PATCHBAY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Paths are the default paths of flags; an empty one means no default.
type Paths struct {
	PluginDir, deviceSocketDir, ControlSocket, State, Config string
}

// PathsFor returns the paths of the file system hierarchy standard for root and of the XDG base directory specification for other users.
// Without a runtime directory, which requires a login session, it uses the state directory: unlike /tmp, that belongs to the user.
func PathsFor(uid int, getenv func(string) string) Paths {
	if uid == 0 {
		return Paths{
			PluginDir:       "/run/patchbay/plugins",
			deviceSocketDir: "/run/patchbay/device-plugins",
			ControlSocket:   "/run/patchbay/control.sock",
			State:           "/var/lib/patchbay/state.db",
			Config:          "/etc/patchbay/patchbay.yaml",
		}
	}
	// base returns an XDG base directory, empty if none is known. The specification requires to ignore relative paths.
	base := func(key string, underHome ...string) string {
		if dir := getenv(key); filepath.IsAbs(dir) {
			return dir
		}
		if home := getenv("HOME"); filepath.IsAbs(home) {
			return filepath.Join(home, filepath.Join(underHome...))
		}
		return ""
	}
	stateHome, runtimeDir := base("XDG_STATE_HOME", ".local", "state"), getenv("XDG_RUNTIME_DIR")
	if stateHome == "" || !filepath.IsAbs(runtimeDir) {
		runtimeDir = stateHome
	}
	// in returns the path of a file of Patchbay in a base directory; empty if base is empty.
	in := func(base, name string) string {
		if base == "" {
			return ""
		}
		return filepath.Join(base, "patchbay", name)
	}
	return Paths{
		PluginDir:       in(runtimeDir, "plugins"),
		deviceSocketDir: in(runtimeDir, "device-plugins"),
		ControlSocket:   in(runtimeDir, "control.sock"),
		State:           in(stateHome, "state.db"),
		Config:          in(base("XDG_CONFIG_HOME", ".config"), "patchbay.yaml"),
	}
}

// settings are the flags with one value and their keys in the configuration file.
var settings = []struct {
	flag string
	path []string
}{
	{"deprecated-plugin-dir", []string{"deprecatedPluginDir"}},
	{"state", []string{"state"}},
	{"control-socket", []string{"controlSocket"}},
	{"dispense-dir", []string{"dispenseDir"}},
	{"device-socket-dir", []string{"device", "socketDir"}},
	{"http", []string{"http"}},
	{"unhandled", []string{"unhandled"}},
	{"log-level", []string{"log", "level"}},
	{"log-format", []string{"log", "format"}},
}

// ConfigFlags are the flags that determine the configuration.
type ConfigFlags struct {
	Paths Paths
	// File is the configuration file. It may be missing unless it was named.
	File     string
	Named    bool
	dirs     []string
	handlers map[string]string
	accepted []string
}

// AddConfigFlags adds the flags that override the configuration file.
func AddConfigFlags(cmd *cobra.Command, paths Paths) *ConfigFlags {
	f := &ConfigFlags{Paths: paths}
	flags := cmd.Flags()
	var dirs []string
	if paths.PluginDir != "" {
		dirs = []string{paths.PluginDir}
	}
	flags.StringVar(&f.File, "config", paths.Config, "configuration file; the default can be set with "+ConfigEnv)
	flags.StringArrayVar(&f.dirs, "plugin-dir", dirs, "directory where plugins create their sockets; can be repeated")
	flags.String("deprecated-plugin-dir", "", "additional plugin directory, in which everything under kubernetes.io/ is ignored")
	flags.String("state", paths.State, "file that remembers the registered plugins")
	flags.String("dispense-dir", "", "directory in which every plugin has a stable socket, TYPE/NAME.sock, for programs that are not Go")
	flags.String("device-socket-dir", paths.deviceSocketDir,
		"directory in which kubelet.sock is served for device plugins that register the older way, with --handler DevicePlugin=device")
	flags.String("http", "", "loopback address and port on which /livez, /readyz and /metrics are served, for example 127.0.0.1:8080")
	flags.StringToStringVar(&f.handlers, "handler", nil,
		"handler for the plugins of a type, as `TYPE=KIND`; the kinds are "+strings.Join(daemon.HandlerKinds(), ", ")+"; can be repeated")
	flags.Lookup("handler").DefValue = "" // not shown as []
	var known []string
	for _, ptype := range daemon.DefaultTypes() {
		known = append(known, Each(daemon.HandlerKinds(), func(kind string) string { return ptype + "=" + kind })...)
	}
	CompleteFlag(cmd, "handler", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
	flags.StringArrayVar(&f.accepted, "accept-type", nil, "the same as --handler `TYPE`=accept; can be repeated")
	AddChoice(cmd, "unhandled", "", "treatment of plugins of all other types: refuse them or leave them alone",
		config.Unhandled...)
	flags.String("control-socket", paths.ControlSocket, "path of the daemon's control socket")
	AddChoice(cmd, "log-level", "", "lowest level that is logged", config.LogLevels...)
	AddChoice(cmd, "log-format", "", "format of the log; auto is text on a terminal and JSON elsewhere", config.LogFormats...)
	return f
}

// Sources returns where the configuration comes from: files, environment and flags.
func (f *ConfigFlags) Sources(cmd *cobra.Command) (config.Sources, error) {
	s := SourcesFor(f.Paths)
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	if f.Named || given("config") {
		if s.File, s.Optional = f.File, false; s.File == "" {
			return config.Sources{}, WrongUsage(cmd, "the config file has an empty path: name a file")
		}
	}
	over := func(value, source string, path ...string) {
		s.Over = append(s.Over, config.Setting{Path: path, Value: value, Source: source})
	}
	for _, setting := range settings {
		if value := os.Getenv(EnvOf(setting.flag)); value != "" {
			over(value, "environment variable "+EnvOf(setting.flag), setting.path...)
		}
		if given(setting.flag) {
			over(cmd.Flags().Lookup(setting.flag).Value.String(), flagSource+setting.flag, setting.path...)
		}
	}
	if given("plugin-dir") {
		s.Over = append(s.Over, config.Setting{Path: []string{"pluginDirs"}, List: f.dirs, Source: flagSource + "plugin-dir"})
	}
	for _, ptype := range slices.Sorted(maps.Keys(f.handlers)) {
		over(f.handlers[ptype], flagSource+"handler", "handlers", ptype)
	}
	for _, ptype := range f.accepted {
		over(daemon.HandlerAccept, flagSource+"accept-type", "handlers", ptype)
	}
	return s, nil
}

const flagSource = "flag --"

// SourcesFor returns the sources of a configuration without flags and without settings in the environment.
func SourcesFor(paths Paths) config.Sources {
	s := config.Sources{File: paths.Config, Optional: true}
	s.Defaults.SetDefaults()
	if paths.PluginDir != "" {
		s.Defaults.PluginDirs = []string{paths.PluginDir}
	}
	s.Defaults.State, s.Defaults.ControlSocket = paths.State, paths.ControlSocket
	s.Defaults.Device.SocketDir = paths.deviceSocketDir
	if file := os.Getenv(ConfigEnv); file != "" {
		s.File, s.Optional = file, false
	}
	return s
}

// Check loads the configuration and checks it, also for this machine. What is wrong with plugins and paths is not an error for the daemon,
// which runs without such plugins.
func (f *ConfigFlags) Check(cmd *cobra.Command) (*config.Loaded, error) {
	sources, err := f.Sources(cmd)
	if err != nil {
		return nil, err
	}
	return load(sources, daemon.CheckPlugins, checkPaths)
}

// checkPaths returns errors for paths of a configuration that the daemon cannot create or use on this machine.
func checkPaths(c *config.Loaded) error {
	var wrong []error
	check := func(field, path string, isDir bool) {
		if path == "" {
			return
		}
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, syscall.ENOTDIR):
			err = fmt.Errorf("cannot create %s: a part of the path is not a directory; choose another path", path)
		case err != nil || info.IsDir() == isDir:
			return // the daemon creates missing files and directories
		case isDir:
			err = fmt.Errorf("%s is not a directory: choose another path", path)
		default:
			err = fmt.Errorf("%s is a directory: name a file", path)
		}
		wrong = append(wrong, &config.FieldError{Field: field, Err: err})
	}
	for i, dir := range c.PluginDirs {
		check(fmt.Sprintf("pluginDirs[%d]", i), dir, true)
	}
	check("deprecatedPluginDir", c.DeprecatedPluginDir, true)
	check("state", c.State, false)
	check("controlSocket", c.ControlSocket, false)
	check("dispenseDir", c.DispenseDir, true)
	return errors.Join(wrong...)
}

// Load reads and validates a configuration. If its content is wrong, the error is of type [config.Errors] and has all errors, and Load
// returns the parts that could be read.
func Load(sources config.Sources) (*config.Loaded, error) { return load(sources) }

func load(sources config.Sources, more ...func(*config.Loaded) error) (*config.Loaded, error) {
	loaded, err := config.Load(sources)
	if loaded == nil {
		return nil, err
	}
	wrong, _ := errors.AsType[config.Errors](err)
	wrong = append(wrong, loaded.LocateAll(daemon.Validate(*loaded))...)
	for _, check := range more {
		wrong = append(wrong, loaded.LocateAll(check(loaded))...)
	}
	if len(wrong) > 0 {
		wrong.Sort()
		return loaded, wrong
	}
	return loaded, nil
}

// WithoutFiles returns a configuration with the paths of the flags, the environment and the defaults, for use if the files cannot be read.
func WithoutFiles(s config.Sources) *config.Loaded {
	paths := []string{"pluginDirs", "deprecatedPluginDir", "state", "controlSocket"}
	s.File = ""
	s.Over = slices.DeleteFunc(slices.Clone(s.Over), func(o config.Setting) bool { return !slices.Contains(paths, o.Path[0]) })
	loaded, err := config.Load(s)
	if err != nil {
		panic(fmt.Sprintf("command: invalid paths from the command line: %v", err)) // any text is a path
	}
	return loaded
}

// Blame returns a usage error if all errors of a configuration are in the command line or the environment.
func Blame(cmd *cobra.Command, err error) error {
	wrong, ok := errors.AsType[config.Errors](err)
	if !ok {
		return err
	}
	if slices.ContainsFunc(wrong, func(e *config.Error) bool { return e.Origin.IsFile() }) {
		return fmt.Errorf("cannot use the configuration: %w", err)
	}
	return WrongUsage(cmd, "%w", err)
}
