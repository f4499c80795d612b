// Package pluginruntime runs the parts of a host together: discovery and registration, the registry, the launcher, admission and the
// events. Package patchbay is its public face; the daemon uses it directly, for what only the daemon needs.
//
// It is not for users of this module.
package pluginruntime
