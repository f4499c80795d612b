// Package proxy forwards gRPC calls to plugins without knowing their services: any method, unary or streaming, with metadata, deadlines,
// cancellation and status details, and without looking into a message.
//
// A [Server] takes the calls, and a [Director] chooses for each to which [grpc.ClientConnInterface] it goes. The package
// keeps no connections, knows no registry, and retries nothing: a call belongs to the connection that was chosen when it began. Messages
// are not collected: of each stream at most one message a direction is in the proxy, and flow control holds back whoever sends faster
// than the other end reads.
//
// What is not the same as on a direct connection: compression is undone and not redone. gRPC defines it for one hop, and the hops here do
// not leave the machine; a message in an encoding that this program does not know is refused with codes.Unimplemented, as gRPC prescribes.
// Headers that belong to one connection (user-agent, :authority, the encodings) are those of the proxy, and [HopsKey] has one value more: a
// call that comes back again and again, because the endpoint of a plugin is a socket of the proxy, ends after 8 hops.
package proxy
