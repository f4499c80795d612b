package catalogue

import (
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// Protocol is what a plugin speaks with the daemon.
type Protocol string

// The protocols.
const (
	// ProtocolPatchbay: the plugin registers itself, and knows Patchbay's handshake or does without.
	ProtocolPatchbay Protocol = "patchbay"
	// ProtocolGoPlugin: the plugin is one of github.com/hashicorp/go-plugin that serves gRPC.
	ProtocolGoPlugin Protocol = "go-plugin"
)

// GoPlugin is what a plugin of go-plugin has to be told: what its hosts have in their HandshakeConfig.
type GoPlugin struct {
	// CookieKey is the name of the environment variable that is the magic cookie.
	CookieKey string `json:"cookieKey"`
	// CookieValue is the value of the magic cookie.
	CookieValue string `json:"cookieValue"`
	// ProtocolVersions are the versions that the plugin's users understand. The plugin takes the newest that it knows, and is registered
	// with it.
	ProtocolVersions []int `json:"protocolVersions"`
	// Plugin is the name that the plugin is registered with, for example that by which other hosts dispense it (default: name).
	Plugin string `json:"plugin"`
	// AutoMTLS secures the connection with certificates that nobody but the daemon and the plugin have.
	AutoMTLS bool `json:"autoMTLS"`
}

// isSet says whether anything was configured.
func (g GoPlugin) isSet() bool {
	return g.CookieKey+g.CookieValue+g.Plugin != "" || len(g.ProtocolVersions) > 0
}

// checkProtocol checks what the protocol demands.
func (p *Plugin) checkProtocol(check func(ok bool, field, format string, args ...any)) {
	if p.Protocol != ProtocolGoPlugin {
		check(p.Protocol == ProtocolPatchbay, "protocol", "%q must be one of %s, %s", p.Protocol, ProtocolPatchbay, ProtocolGoPlugin)
		check(p.Type == "", "type", "it is for protocol: go-plugin only")
		check(!p.GoPlugin.isSet(), "goPlugin", "it is for protocol: go-plugin only")
		return
	}
	g := p.GoPlugin
	check(foreign.IsType(p.Type) && foreign.Printable(p.Type), "type",
		"%q is no plugin type: it must have printable characters, at least one, and no slash", p.Type)
	check(g.CookieKey != "" && !strings.ContainsAny(g.CookieKey, "=\x00"), "goPlugin.cookieKey",
		"%q is no name of a variable: it must not be empty or have = in it", g.CookieKey)
	check(g.CookieValue != "" && !strings.Contains(g.CookieValue, "\x00"), "goPlugin.cookieValue",
		"it must not be empty or have a NUL character")
	check(len(g.ProtocolVersions) > 0, "goPlugin.protocolVersions", "it must name at least one")
	if i := slices.IndexFunc(g.ProtocolVersions, func(v int) bool { return v <= 0 }); i >= 0 {
		check(false, "goPlugin.protocolVersions", "%d must be above zero", g.ProtocolVersions[i])
	}
	check(foreign.Printable(g.Plugin), "goPlugin.plugin", "%q must have printable characters only", g.Plugin)
	check(p.Serve, "serve", "a plugin of go-plugin always serves")
	check(!p.Survive, "survive", "a plugin of go-plugin cannot: its certificates and its registration are the daemon's")
}
