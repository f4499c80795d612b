// Package daemon runs Patchbay as a program: it opens the saved state, runs a [patchbay.Runtime] over the plugin directories and
// serves the control API on a Unix socket whose callers it checks and, if asked to, its health over HTTP on a loopback address.
//
// A running daemon can change to another configuration, as a whole or not at all; see [Daemon.Reload]. Where a configuration comes from is
// the business of the program.
//
// It is the one place that knows every part and puts them together, in an order in which a start that fails leaves nothing behind and
// disturbs no other daemon. It holds no logic of discovery or registration, and it neither parses flags nor prints: a program that
// wants plugins without a control socket uses package patchbay itself.
package daemon
