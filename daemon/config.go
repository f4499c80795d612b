package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"github.com/patchbay-dev/patchbay/reconciler"
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
	// Handlers say what becomes of the plugins of a type. A type of [DefaultTypes] that is missing here is accepted, any other is refused.
	Handlers map[string]HandlerKind
	// HTTPAddr is where /livez and /readyz are served over HTTP, as HOST:PORT; empty for nowhere. The host is a loopback address or
	// localhost, which is 127.0.0.1. Everyone on the machine may ask.
	HTTPAddr string
	// Timeouts bound the steps of a registration, TypeTimeouts those of some plugin types; see [patchbay.Config].
	Timeouts     reconciler.Timeouts
	TypeTimeouts map[string]reconciler.Timeouts
	// Build identifies the program to callers of the control API.
	Build Build
	// Logger is told what the daemon does; nil for no log.
	Logger *slog.Logger
}

func (c Config) validate() error {
	switch {
	case len(c.PluginDirs) == 0:
		return errors.New("no plugin directory is configured: name at least one")
	case slices.Contains(c.PluginDirs, ""):
		return errors.New("a plugin directory has an empty path: name a directory")
	case c.StatePath == "":
		return errors.New("the state file has an empty path: name a file")
	case c.ControlSocket == "":
		return errors.New("the control socket has an empty path: name a file")
	}
	for _, dir := range c.pluginDirs() {
		if within(c.ControlSocket, dir) {
			return fmt.Errorf("control socket %s lies in plugin directory %s, where it would be taken for a plugin: choose another path",
				c.ControlSocket, dir)
		}
	}
	if outer, inner, ok := nested(c.pluginDirs()); ok {
		return fmt.Errorf("plugin directory %s contains plugin directory %s: name only the outer one", outer, inner)
	}
	if c.HTTPAddr != "" {
		if _, err := parseHTTPAddr(c.HTTPAddr); err != nil {
			return err
		}
	}
	for _, ptype := range slices.Sorted(maps.Keys(c.TypeTimeouts)) {
		if err := validateType(ptype); err != nil {
			return err
		}
	}
	return c.validateHandlers()
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
