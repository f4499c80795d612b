// Packaging builds what is released: static programs in archives for Linux and macOS, Debian packages, a software bill of
// materials for each program, and the checksums of all that. The same source, version and time make the same bytes, whoever builds them,
// wherever and whenever.
//
// It is a module of its own so that neither users of the library nor the linters get what the library for Debian packages needs. It signs
// and publishes nothing.
package main
