// Package host launches plugins as subprocesses, gives each of them the services of the host that its [Controller] grants, and
// asks admission plugins whether packages may be deployed. It follows the host package of the CIPD plugin system.
//
// A launched plugin reads a line from its standard input that names a Unix socket and a ticket ([handshake.Handshake]); with the
// two it can call its host, as api/patchbay/plugin/v1 says. One gRPC server serves all plugins of a [Host]. A plugin cannot
// outlive its host unless its [Spec] says so, and what it prints becomes log records.
//
// On Linux each launch marks every descriptor of this process above 2 to be closed when it executes a program, also one that it executes
// without this package: what that is to inherit has to be given to it, as with ExtraFiles of [os/exec.Cmd].
//
// The package does not start a plugin again when it has ended, and does not know what a plugin serves: sockets that plugins make
// are found and registered by package pluginwatcher, whoever started them.
package host
