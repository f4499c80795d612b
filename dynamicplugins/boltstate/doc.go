// Package boltstate keeps the state of a dynamicplugins.Registry in a bbolt file. It is the default StateStorage.
//
// Each plugin is one record, so a change costs the same however many plugins there are, and changes that arrive while one is being
// written are written together, with one fsync, by the transaction after it.
//
// Beside the plugins, a handler can keep keys and values of its own, in a [Bucket].
//
// A file that is damaged or has an unknown format is never opened for writing and never repaired: it stays as it is, byte for byte, and the
// error says what is wrong. The package stores what the registry passes to it, without knowing what it means.
package boltstate
