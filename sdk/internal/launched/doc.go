// Package launched is what a plugin has of the host that launched it, or of its absence: the handshake on standard input, the connection
// with its ticket, the log, and the end of standard input that asks the plugin to stop. A [Session] is all of it; it belongs to the
// process, or to a context in tests that play the host.
//
// It serves nothing and knows no plugin: that is package sdk.
package launched
