package cli

import (
	"os"
	"path/filepath"
)

// controlSocketEnv is the environment variable that sets the default of --control-socket.
const controlSocketEnv = "PATCHBAY_CONTROL_SOCKET"

// paths are the defaults of flags; empty where there is none.
type paths struct {
	pluginDir, controlSocket, state string
}

func defaultPaths() paths {
	p := pathsFor(os.Geteuid(), os.Getenv)
	if socket := os.Getenv(controlSocketEnv); socket != "" {
		p.controlSocket = socket
	}
	return p
}

// pathsFor returns the paths of the file system hierarchy standard for root and those of the XDG base directory specification for other
// users. Where no runtime directory is known, which happens without a login session, the state directory stands in: unlike one under
// /tmp, it is the user's own.
func pathsFor(uid int, getenv func(string) string) paths {
	if uid == 0 {
		return paths{
			pluginDir:     "/run/patchbay/plugins",
			controlSocket: "/run/patchbay/control.sock",
			state:         "/var/lib/patchbay/state.db",
		}
	}
	stateHome := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(stateHome) { // the specification says to ignore relative paths
		home := getenv("HOME")
		if !filepath.IsAbs(home) {
			return paths{}
		}
		stateHome = filepath.Join(home, ".local", "state")
	}
	runtimeDir := getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(runtimeDir) {
		runtimeDir = stateHome
	}
	return paths{
		pluginDir:     filepath.Join(runtimeDir, "patchbay", "plugins"),
		controlSocket: filepath.Join(runtimeDir, "patchbay", "control.sock"),
		state:         filepath.Join(stateHome, "patchbay", "state.db"),
	}
}
