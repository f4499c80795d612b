// Package command has no code. The packages below it are the program patchbay, and serve nothing else: its commands, its configuration,
// doctor, demo, the source of new plugins, calls of methods known only at run time, and the manual.
package command
