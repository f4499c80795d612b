// Package fleetv1 holds the values that the nodes of a fleet keep in etcd, version 1, generated from fleet.proto.
//
// It is for programs that read a fleet from etcd themselves; Go programs use package client. The package holds no logic: fleet.proto
// explains the fields, and docs/adr/0012-fleet.md the keys.
package fleetv1
