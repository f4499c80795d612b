package plugin

import "time"

// Timeouts bound the steps of a registration. Zero means the default: 1 s for Dial, 5 s for GetInfo and Notify, and no bound for Handler. Only
// a handler that has a method RegisterPluginContext can be interrupted; any other handler that does not return blocks its plugin, and the
// status shows that.
type Timeouts struct {
	// Dial bounds one connect to a socket.
	Dial time.Duration `json:"dial"`
	// GetInfo bounds the call that asks a plugin for its type and name.
	GetInfo time.Duration `json:"getInfo"`
	// Notify bounds the call that notifies a plugin of the result of its registration.
	Notify time.Duration `json:"notify"`
	// Handler bounds one registration by a handler that can be interrupted (default: unlimited).
	Handler time.Duration `json:"handler"`
}

// Bounds limit what a plugin may announce. Zero values are the defaults. An answer may be limited as a whole before they apply.
type Bounds struct {
	// Text is the greatest length of a type, name or endpoint in bytes (default 4,096). A version may have at most 64.
	Text int
	// Versions is the greatest number of versions (default 64).
	Versions int
	// UserBytes is how many bytes all plugins of one user may announce (default 4 MiB), TotalBytes how many those of all users (default
	// 16 MiB). The last of these, as many as one user may have, are reserved for plugins of root and of the host's user.
	UserBytes, TotalBytes int
	// UserPlugins is how many identified plugins one user may have, and TotalPlugins how many all users may have (default: any number). They
	// do not apply to root and the host's user. Each plugin takes descriptors. As many may be asked for their identity at the same time.
	UserPlugins, TotalPlugins int
}
