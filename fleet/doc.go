// Package fleet shares the plugins of many nodes through etcd: a [Publisher] writes the plugins of one node, and a [Reader] lists and
// watches those of all nodes.
//
// A [Publisher] never makes its node wait. If etcd is slow, unavailable, full, compacted, restored from a backup or replaced,
// [Publisher.Condition] says so and the fleet sees the node's changes late; nothing else is affected. The Publisher recovers on its own,
// with random delays, so that many nodes do not come back at once. An idle node costs etcd one lease renewal every few seconds.
//
// A Reader needs one list and one watch on etcd, however many subscribers it has. They see every change exactly once, across lost
// connections, compactions and restored backups. A dead node stays visible as unreachable until its retention expires.
//
// docs/adr/0012-fleet.md explains the keys and leases. The package is not a general-purpose registry on etcd.
package fleet
