// Package config reads the configuration of the daemon: the file patchbay.yaml, the drop-ins of the directory conf.d beside it, and over
// them the environment and the flags.
//
// Each of these is a layer: a tree of values that know where they come from. The layers are merged and then decoded into a [Config], and
// whatever is wrong is said with the file, line and column of the value. The Go types of this package and of package catalogue
// are the one description of the format; the JSON schema and the reference in docs/configuration.md are generated from them.
//
// The package checks the form of the configuration, and the catalogue. Whether the daemon can work with it is the business of
// package daemon.
package config
