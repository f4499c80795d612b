// Package client talks to a running Patchbay daemon through its control socket.
//
// It turns the control API of api/patchbay/v1 into plain Go values whose JSON form is the one that the patchbay command prints, so
// that a program and a script see the same keys, and its errors say whether no daemon runs, the caller is not allowed, or the plugin
// is not known. It starts no daemon and keeps nothing between calls but idle connections.
//
// Callers that need another language or the protocol itself use the API directly.
package client
