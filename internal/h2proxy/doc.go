// Package h2proxy serves and makes gRPC calls as HTTP/2 frames: the data of a call can be forwarded as it arrives, whatever the size of its
// messages. It is for a proxy, which never needs a whole message; it knows no codecs, no services and no compression.
//
// A [Server] accepts calls and a [Client] makes them, as streams of package grpc whose messages are [Fragment]s. Data that has arrived and
// has not been forwarded waits in memory that a [Budget] bounds. A stream always has a window of 16 KiB each way, and up to 1 MiB while
// data flows and the budget has room: a full budget makes calls slower, and refuses only metadata of more than 8 KiB.
package h2proxy

// What a peer may send and have waiting.
const (
	// baseWindow is the window that each stream always has, maxWindow the largest that it can get. What has come is in chunks of the size of
	// baseWindow, of which the one who reads holds one, however little is in it, while the rest of the window comes: so a base window costs
	// two of them.
	baseWindow, maxWindow = 16 << 10, 1 << 20
	// connWindow is the window of a connection. It is replenished at once: the windows of the streams bound what waits.
	connWindow = 1 << 20
	// baseOut bounds the data queued for a connection before calls wait, deepOut the same while the budget has room. The metadata of one
	// call may be larger; then the budget counts it.
	baseOut, deepOut = 8 << 10, 256 << 10
	// maxAnswers is how many frames that a peer has caused may wait to be written to it before reading from it stops.
	maxAnswers = 64
	// maxUpdates is how many window updates may wait. A peer that has sent that much and read nothing is disconnected: if we stopped
	// reading too, both ends might wait for each other.
	maxUpdates = 4096
	// maxFrame is the size of the largest frame that every peer must accept.
	maxFrame = 16 << 10
	// MaxMetadata is the size in bytes, as HTTP/2 counts it, of the largest metadata of a call.
	MaxMetadata = 1 << 20
	// freeMetadata is the size of the metadata that the budget does not count.
	freeMetadata = 8 << 10
	// protocolWindow is the window of a stream or connection for which no other was announced.
	protocolWindow = 1<<16 - 1
)
