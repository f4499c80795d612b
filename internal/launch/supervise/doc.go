// Package supervise decides when a plugin that ended is started again, and finds out whether one that runs is well.
//
// A Supervisor wraps a Runner, which is one life of a plugin, in a Policy. A Health asks a plugin through grpc.health.v1; its outcome may
// end a life, if the Policy says so. Neither knows processes or connections: package host has them, and puts the two together.
package supervise
