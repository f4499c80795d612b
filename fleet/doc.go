// Package fleet makes the plugins of many nodes known to each other through etcd: a [Publisher] writes what one node has, and a [Reader]
// lists and watches what all of them have.
//
// The node comes first. A Publisher never makes the node wait: etcd may be slow, away, full, compacted, restored from a backup or replaced
// by another one, and all that happens is that [Publisher.Condition] says so and that the fleet sees the node late. It comes back by
// itself, with random delays, so that many nodes do not come back at once. At rest a node costs etcd one renewal of a lease every few
// seconds and nothing else.
//
// A Reader has one list and one watch on etcd, however many subscribers it has. What it tells them has neither gaps nor repeats, over lost
// connections, compactions and restored backups. A node that died stays visible, as unreachable, until its retention time is over.
//
// Which keys there are, under which leases, and why, is written in docs/adr/0012-fleet.md. The package is not a general-purpose registry on
// etcd, and it calls no plugin: it says where one is.
package fleet
