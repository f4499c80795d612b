package cli

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/command/config"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// The environment variables that name files. Every other flag of "patchbay run" with one value has one too, see envOf.
const (
	configEnv        = "PATCHBAY_CONFIG"
	controlSocketEnv = "PATCHBAY_CONTROL_SOCKET"
)

// envOf returns the environment variable that stands for a flag.
func envOf(flag string) string {
	return "PATCHBAY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// settings are the flags with one value that stand for a key of the configuration file.
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

// configFlags are the flags that say what the configuration is.
type configFlags struct {
	paths paths
	// file is the configuration file; it is optional unless it was named.
	file     string
	named    bool
	dirs     []string
	handlers map[string]daemon.HandlerKind
}

func addConfigFlags(cmd *cobra.Command, paths paths) *configFlags {
	f := &configFlags{paths: paths, handlers: map[string]daemon.HandlerKind{}}
	flags := cmd.Flags()
	var dirs []string
	if paths.pluginDir != "" {
		dirs = []string{paths.pluginDir}
	}
	flags.StringVar(&f.file, "config", paths.config, "configuration file; the default can be set with "+configEnv)
	flags.StringArrayVar(&f.dirs, "plugin-dir", dirs, "directory in which plugins put their sockets; can be repeated")
	flags.String("deprecated-plugin-dir", "", "one more plugin directory, in which everything under kubernetes.io/ is ignored")
	flags.String("state", paths.state, "file that remembers the registered plugins")
	flags.String("dispense-dir", "", "directory in which every plugin has a stable socket, TYPE/NAME.sock, for programs that are not Go")
	flags.String("device-socket-dir", paths.deviceSocketDir,
		"directory in which kubelet.sock is served for device plugins that register the older way, with --handler DevicePlugin=device")
	flags.String("http", "", "loopback address and port on which /livez, /readyz and /metrics are served, for example 127.0.0.1:8080")
	flags.Var(handlerFlag{f.handlers, "TYPE=KIND"}, "handler", "what becomes of the plugins of a type; the kinds are "+handlerKinds()+"; can be repeated")
	completeFlag(cmd, "handler", cobra.FixedCompletions(completeHandler(), cobra.ShellCompDirectiveNoFileComp))
	flags.Var(handlerFlag{f.handlers, "TYPE"}, "accept-type", "the same as --handler TYPE=accept; can be repeated")
	addChoice(cmd, "unhandled", "", "what becomes of plugins of all other types: they are told that they are refused, or left alone",
		config.Unhandled...)
	flags.String("control-socket", paths.controlSocket, "path of the daemon's control socket")
	addChoice(cmd, "log-level", "", "least level that is logged", config.LogLevels...)
	addChoice(cmd, "log-format", "", "format of the log; auto is text on a terminal and JSON elsewhere", config.LogFormats...)
	return f
}

// sources returns what the configuration is made of.
func (f *configFlags) sources(cmd *cobra.Command) (config.Sources, error) {
	s := sourcesFor(f.paths)
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	if f.named || given("config") {
		if s.File, s.Optional = f.file, false; s.File == "" {
			return config.Sources{}, wrongUsage(cmd, "the config file has an empty path: name a file")
		}
	}
	for _, setting := range settings {
		if value := os.Getenv(envOf(setting.flag)); value != "" {
			s.Over = append(s.Over, config.Setting{
				Path: setting.path, Value: value, Source: "environment variable " + envOf(setting.flag),
			})
		}
	}
	for _, setting := range settings {
		if given(setting.flag) {
			s.Over = append(s.Over, config.Setting{
				Path: setting.path, Value: cmd.Flags().Lookup(setting.flag).Value.String(), Source: flagSource + setting.flag,
			})
		}
	}
	if given("plugin-dir") {
		s.Over = append(s.Over, config.Setting{Path: []string{"pluginDirs"}, List: f.dirs, Source: flagSource + "plugin-dir"})
	}
	handlerSource := flagSource + "handler"
	if !given("handler") {
		handlerSource = flagSource + "accept-type"
	}
	for _, ptype := range slices.Sorted(maps.Keys(f.handlers)) {
		s.Over = append(s.Over, config.Setting{
			Path: []string{"handlers", ptype}, Value: string(f.handlers[ptype]), Source: handlerSource,
		})
	}
	return s, nil
}

const flagSource = "flag --"

// sourcesFor returns what the configuration is made of when no flag is given and no setting is in the environment.
func sourcesFor(paths paths) config.Sources {
	s := config.Sources{File: paths.config, Optional: true}
	s.Defaults.SetDefaults()
	if paths.pluginDir != "" {
		s.Defaults.PluginDirs = []string{paths.pluginDir}
	}
	s.Defaults.State, s.Defaults.ControlSocket = paths.state, paths.controlSocket
	s.Defaults.Device.SocketDir = paths.deviceSocketDir
	if file := os.Getenv(configEnv); file != "" {
		s.File, s.Optional = file, false
	}
	return s
}

// check loads the configuration and has the daemon's own rules checked too.
func (f *configFlags) check(cmd *cobra.Command) (*config.Loaded, error) {
	sources, err := f.sources(cmd)
	if err != nil {
		return nil, err
	}
	loaded, c, err := load(sources)
	wrong, ok := errors.AsType[config.Errors](err)
	if err != nil && !ok || c.Catalogue == nil {
		return loaded, err
	}
	// A daemon would run with such plugins, and not launch them.
	if wrong = append(wrong, located(loaded, c.CheckPlugins())...); len(wrong) == 0 {
		return loaded, nil
	}
	wrong.Sort()
	return loaded, wrong
}

// located returns where the fields stand about which there are errors.
func located(loaded *config.Loaded, err error) (wrong config.Errors) {
	if err == nil {
		return nil
	}
	joined, _ := err.(interface{ Unwrap() []error })
	for _, err := range joined.Unwrap() {
		field, _ := errors.AsType[*daemon.FieldError](err)
		wrong = append(wrong, loaded.Locate(field.Field, field.Err))
	}
	return wrong
}

// load reads a configuration that a daemon can work with. The error is of type [config.Errors] if it is the content that is wrong. With
// one whose form is right, which the daemon cannot work with, comes the configuration too.
func load(sources config.Sources) (*config.Loaded, daemon.Config, error) {
	loaded, err := config.Load(sources)
	if err != nil {
		return nil, daemon.Config{}, err
	}
	c := daemonConfig(loaded)
	if wrong := located(loaded, c.Validate()); len(wrong) > 0 {
		wrong.Sort()
		return loaded, c, wrong
	}
	return loaded, c, nil
}

// blame makes the command line responsible for a configuration that is wrong if nothing in a file is.
func blame(cmd *cobra.Command, err error) error {
	wrong, ok := errors.AsType[config.Errors](err)
	if !ok {
		return err
	}
	if slices.ContainsFunc(wrong, func(e *config.Error) bool { return e.Origin.IsFile() }) {
		return fmt.Errorf("cannot use the configuration: %w", err)
	}
	return wrongUsage(cmd, "%w", err)
}

func controlRoles(r config.Roles) daemon.Roles {
	return daemon.Roles{Read: daemon.Members(r.Read), Operate: daemon.Members(r.Operate), Admin: daemon.Members(r.Admin)}
}

// daemonConfig returns what a configuration means for the daemon.
func daemonConfig(loaded *config.Loaded) daemon.Config {
	c := loaded.Config
	d := daemon.Config{
		PluginDirs:          c.PluginDirs,
		DeprecatedPluginDir: c.DeprecatedPluginDir,
		StatePath:           c.State,
		ControlSocket:       c.ControlSocket,
		Roles:               controlRoles(c.Control.Roles),
		DispenseDir:         c.DispenseDir,
		DeviceSocketDir:     c.Device.SocketDir,
		HTTPAddr:            c.HTTP,
		Handlers:            map[string]daemon.HandlerKind{},
		Log:                 daemon.Log(c.Log),
		Timeouts:            reconciler.Timeouts(c.Timeouts),
		TypeTimeouts:        map[string]reconciler.Timeouts{},
		ClientTimeouts:      c.ClientTimeouts,
		Bounds:              reconciler.Bounds{Text: c.Bounds.Text, Versions: c.Bounds.Versions},
		MaxDepth:            c.Bounds.MaxDepth,
		MaxSockets:          c.Bounds.MaxSockets,
		Admission: host.AdmissionSpec{
			Args: c.Admission.Command, Protocol: host.Protocol(c.Admission.Protocol), Timeout: c.Admission.Timeout,
		},
		Trust:            c.Trust,
		Tracing:          daemon.Tracing(c.Tracing),
		UnreachableGrace: c.UnreachableGrace,
		IgnoreUnhandled:  c.Unhandled == "ignore",
		Fleet:            fleetConfig(c.Fleet),
		Catalogue:        loaded.Catalogue,
		Build:            daemon.ThisBuild(),
	}
	for ptype, kind := range c.Handlers {
		d.Handlers[ptype] = daemon.HandlerKind(kind)
	}
	for ptype, timeouts := range c.TypeTimeouts {
		d.TypeTimeouts[ptype] = reconciler.Timeouts(timeouts)
	}
	return d
}

// fleetConfig returns what the configuration of the fleet means for the daemon.
func fleetConfig(c config.Fleet) daemon.FleetConfig {
	e := c.Etcd
	serve := daemon.FleetServe{
		Listen: c.Serve.Listen,
		TLS:    fleet.TLS{CA: c.Serve.CA, Cert: c.Serve.Cert, Key: c.Serve.Key, ServerName: c.Serve.ServerName},
	}
	for _, a := range c.Serve.Allow {
		serve.Allow = append(serve.Allow, daemon.FleetAllow(a))
	}
	return daemon.FleetConfig{
		Etcd: fleet.Etcd{
			Endpoints: e.Endpoints, CA: e.CA, Cert: e.Cert, Key: e.Key, ServerName: e.ServerName, User: e.User, PasswordFile: e.PasswordFile,
			Timeout: e.Timeout,
		},
		Space:     fleet.Space{Prefix: e.Prefix, Namespace: e.Namespace},
		Node:      c.Node,
		Address:   c.Address,
		Serve:     serve,
		Exclusive: c.Exclusive,
		Presence:  c.Presence,
		Retention: c.Retention,
	}
}
