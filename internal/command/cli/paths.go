package cli

import "path/filepath"

// paths are the defaults of flags; empty where there is none.
type paths struct {
	pluginDir, deviceSocketDir, controlSocket, state, config string
}

// pathsFor returns the paths of the file system hierarchy standard for root and those of the XDG base directory specification for other
// users. Where no runtime directory is known, which happens without a login session, the state directory stands in: unlike one under
// /tmp, it is the user's own.
func pathsFor(uid int, getenv func(string) string) paths {
	if uid == 0 {
		return paths{
			pluginDir:       "/run/patchbay/plugins",
			deviceSocketDir: "/run/patchbay/device-plugins",
			controlSocket:   "/run/patchbay/control.sock",
			state:           "/var/lib/patchbay/state.db",
			config:          "/etc/patchbay/patchbay.yaml",
		}
	}
	// base returns an XDG base directory, empty if none is known. The specification says to ignore relative paths.
	base := func(key string, underHome ...string) string {
		if dir := getenv(key); filepath.IsAbs(dir) {
			return dir
		}
		if home := getenv("HOME"); filepath.IsAbs(home) {
			return filepath.Join(home, filepath.Join(underHome...))
		}
		return ""
	}
	var p paths
	if configHome := base("XDG_CONFIG_HOME", ".config"); configHome != "" {
		p.config = filepath.Join(configHome, "patchbay", "patchbay.yaml")
	}
	stateHome := base("XDG_STATE_HOME", ".local", "state")
	if stateHome == "" {
		return p
	}
	runtimeDir := getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(runtimeDir) {
		runtimeDir = stateHome
	}
	p.pluginDir = filepath.Join(runtimeDir, "patchbay", "plugins")
	p.deviceSocketDir = filepath.Join(runtimeDir, "patchbay", "device-plugins")
	p.controlSocket = filepath.Join(runtimeDir, "patchbay", "control.sock")
	p.state = filepath.Join(stateHome, "patchbay", "state.db")
	return p
}
