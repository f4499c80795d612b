// Package cli is the patchbay command: its subcommands, one file each, their flags, what they print and their exit codes.
//
// A command that looks at a running daemon does so through package client only, and prints whatever came from a plugin in a form that
// cannot disturb a terminal. The package holds nothing that a program would want to import; such a program uses packages patchbay, daemon
// and client.
package cli
