package cache

import (
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// PluginInfo describes one plugin socket. Values may be compared with ==.
type PluginInfo struct {
	// SocketPath is the path of the registration socket.
	SocketPath string
	// Timestamp is when the socket appeared. It is strictly increasing over the appearances in one state of the world.
	Timestamp time.Time
	// Handler is the handler of the plugin, set once the plugin is registered.
	Handler PluginHandler
	// Name is the name that the plugin announced, set once the plugin is registered.
	Name string

	// Type is the type that the plugin announced, set once the plugin is registered.
	Type string
	// Appearance is the number of this appearance of a socket. It is unique within one desired state of the world, and increases with each
	// appearance. A rename within the plugin directories is not a new appearance.
	Appearance uint64
	// Socket is the identity of the socket; zero if unknown.
	Socket plugin.SocketID
	// FoundInDeprecatedDir reports whether the socket is in the deprecated plugin directory.
	FoundInDeprecatedDir bool
}

// GenerateMsgDetailed returns a message for logs with all details of the plugin:
// "<prefixMsg> <plugin details> <suffixMsg>".
func (p *PluginInfo) GenerateMsgDetailed(prefixMsg, suffixMsg string) (detailedMsg string) {
	return prefixMsg + " " + p.details() + " " + suffixMsg
}

// GenerateMsg returns a short message for users, which names the socket, and the message of [PluginInfo.GenerateMsgDetailed].
func (p *PluginInfo) GenerateMsg(prefixMsg, suffixMsg string) (simpleMsg, detailedMsg string) {
	return prefixMsg + " " + p.subject() + " " + suffixMsg, p.GenerateMsgDetailed(prefixMsg, suffixMsg)
}

// GenerateErrorDetailed returns an error for logs with all details of the plugin: "<prefixMsg> <plugin details>: <err>". It
// wraps err.
func (p *PluginInfo) GenerateErrorDetailed(prefixMsg string, err error) (detailedErr error) {
	return generateError(prefixMsg, p.details(), err)
}

// GenerateError returns a short error for users, which names the socket, and the error of [PluginInfo.GenerateErrorDetailed]. Both wrap
// err.
func (p *PluginInfo) GenerateError(prefixMsg string, err error) (simpleErr, detailedErr error) {
	return generateError(prefixMsg, p.subject(), err), p.GenerateErrorDetailed(prefixMsg, err)
}

func generateError(prefixMsg, subject string, err error) error {
	if err == nil {
		return fmt.Errorf("%s %s: unknown error", prefixMsg, subject)
	}
	return fmt.Errorf("%s %s: %w", prefixMsg, subject, err)
}

func (p *PluginInfo) subject() string {
	return fmt.Sprintf("plugin at %q", p.SocketPath)
}

func (p *PluginInfo) details() string {
	return fmt.Sprintf("%s (plugin details: type %q, name %q, appeared %s as number %d, handler %T)", p.subject(),
		p.Type, p.Name, p.Timestamp.Format(time.RFC3339Nano), p.Appearance, p.Handler)
}
