package plugin

import "time"

// Timeouts limit the steps of a registration. Zero values are the defaults.
type Timeouts struct {
	// Dial limits one connect (default 1 s), GetInfo and Notify one call to the plugin (default 5 s each).
	Dial, GetInfo, Notify time.Duration
	// Handler limits one RegisterPluginContext of a handler that has it (default none). A handler without it cannot be interrupted: it blocks
	// its plugin, and the status shows that.
	Handler time.Duration
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
