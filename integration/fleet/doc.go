// Package fleet holds the tests of package fleet of Patchbay on real etcd: its server is embedded, alone or as three members, and is
// stopped, cut, filled, compacted, restored and replaced under publishers and readers.
//
// It has no code of its own. It is apart from the other tests of this module because those build programs first, which takes long.
package fleet
