// Package scaffold writes the source of a new plugin: a Go module that builds, with a service of the plugin's type, tests on package
// sdk/sdktest, a Makefile and a systemd unit. What it writes is a beginning that its owner changes; it never touches a file that exists.
package scaffold
