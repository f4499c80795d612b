package host

import (
	"os"
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
)

// environment returns the environment of a plugin: what is listed, or that of this process, and what announces the handshake, if it is
// Patchbay's. The last value of a variable counts, as it does in package os/exec; programs do not agree on which they take.
func environment(listed []string, protocol Protocol) []string {
	if listed == nil {
		listed = os.Environ()
	}
	env := make([]string, 0, len(listed)+1)
	seen := map[string]bool{}
	for _, entry := range slices.Backward(append(listed[:len(listed):len(listed)], handshake.Env+"="+handshake.EnvValue)) {
		name, _, _ := strings.Cut(entry, "=")
		if seen[name] || name == handshake.Env && protocol != ProtocolPatchbay {
			continue
		}
		seen[name] = true
		env = append(env, entry)
	}
	slices.Reverse(env)
	return env
}
