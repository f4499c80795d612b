// Package fleetv1 holds the values that the nodes of a fleet keep in etcd, version 1, generated from fleet.proto.
//
// It is for programs that read a fleet from etcd without package fleet, which is how Go programs do it. The package holds no logic; what
// the fields mean is said in fleet.proto, and which key has which value in docs/adr/0012-fleet.md.
package fleetv1
