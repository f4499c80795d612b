package host

import (
	"context"
	"io"
)

// Foreign stands between a host and a plugin that speaks another protocol than the host's own; see [Spec]. Such a plugin is told nothing
// on its standard input, which ends when the plugin is terminated, and cannot call its host. What it prints goes into its log.
type Foreign interface {
	// Hello is called first, and reads from standard output what is not meant for the log. It returns when it has seen enough, or with
	// the first error: when the plugin has ended there is one.
	Hello(stdout io.Reader)
	// Stop asks the plugin to end. It is called, concurrently too, by each [PluginProcess.Terminate], while it waits as long as
	// [Grace].Stdin says; ctx ends when that call does.
	Stop(ctx context.Context)
	// Ended is called once, after Done of the process was closed, or after the host has given up waiting for that. The host's Close waits
	// until it returns.
	Ended()
}
