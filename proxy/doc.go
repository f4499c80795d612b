// Package proxy forwards gRPC calls to plugins without knowing their services: any method, unary or streaming, with metadata, deadlines,
// cancellation and status details, and without looking into a message.
//
// A [Server] or a [LocalServer] accepts the calls, and a [Director] chooses the [grpc.ClientConnInterface] for each. The package
// keeps no connections, knows no registry, and retries nothing: a call stays on the connection chosen when it began. A Server holds at most
// one message per stream and direction, a LocalServer fragments of one, and flow control slows a sender that is faster than its reader. The
// fragments of all calls together have a bound; the messages do not.
//
// Two things differ from a direct connection. A Server decompresses messages and does not compress them again: compression applies to one
// hop in gRPC, and the hops here do not leave the machine. A message in an unknown encoding is refused with codes.Unimplemented, as gRPC
// prescribes. A LocalServer forwards compressed messages as they are.
//
// Headers that belong to one connection (user-agent, :authority and, at a Server, the encodings) are the proxy's own, and [HopsKey] gets
// one more value: a call that loops, because the endpoint of a plugin is a socket of the proxy, ends after 8 hops.
package proxy
