// Package crash holds the tests of a daemon whose state file is on a device that fails: full, read-only, or with errors of reading, writing
// and syncing, which a FUSE file system makes.
//
// It has no code of its own. It is apart from the other tests of this module because it mounts file systems, for which it has to be root.
package crash
