package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// DefaultTypes are the plugin types that every daemon accepts.
func DefaultTypes() []string {
	return []string{registerapi.CSIPlugin, registerapi.DevicePlugin, registerapi.DRAPlugin}
}

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
	// AcceptTypes are plugin types that are accepted beside [DefaultTypes].
	AcceptTypes []string
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
	for _, ptype := range c.AcceptTypes {
		if ptype == "" || strings.Contains(ptype, "/") {
			return fmt.Errorf("cannot accept plugin type %q: a type is not empty and has no slash, for example MyPlugin", ptype)
		}
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

// types returns every accepted type once.
func (c Config) types() []string {
	types := append(DefaultTypes(), c.AcceptTypes...)
	slices.Sort(types)
	return slices.Compact(types)
}
