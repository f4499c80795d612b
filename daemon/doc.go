// Package daemon runs Patchbay as a program: it opens the saved state, runs a [patchbay.Runtime] over the plugin directories and
// serves the control API on a Unix socket whose callers it checks and, if asked to, its health over HTTP on a loopback address.
//
// A running daemon can change to another configuration, as a whole or not at all; see [Daemon.Reload]. Reading the configuration is up to
// the program.
//
// It is the only package that knows every part. It assembles them so that a failed start leaves nothing behind and disturbs no other
// daemon. It holds no logic of discovery or registration, and it neither parses flags nor prints: a program that wants plugins without a
// control socket uses package patchbay itself.
package daemon
