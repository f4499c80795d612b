// Package integration holds the tests of Patchbay against plugins that were written for other hosts. Each plugin runs unchanged, as a
// process of its own, and registers with a "patchbay run" that was built from the working tree.
//
// The tests look at the daemon only through its commands, as an operator does. What a single package promises is tested in that package.
// The folder is a module of its own so that users of the library never download what these plugins are made of.
//
// The go command does not know that the tests depend on the module above, and would give a cached result after a change there: the tests
// are run with "go test -count=1 ./...".
package integration
