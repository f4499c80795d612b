// Package h2proxy serves and makes gRPC calls without whole messages in memory: it forwards the data of a call as it arrives. It works on
// HTTP/2 frames, is meant for proxies, and knows no codecs, no services and no compression.
//
// A [Server] accepts calls and a [Client] makes them. Both represent a call as a gRPC stream whose messages are [Fragment]s, arbitrary
// parts of the data. A [Budget] bounds the memory for data that has arrived and is not forwarded yet. Each stream always has a flow-control
// window of 16 KiB in each direction, which grows to 1 MiB while data flows and the budget allows it. When the budget is exhausted, calls
// become slower; only metadata of more than 8 KiB is then refused.
package h2proxy

// Limits of what a peer may send, and of what may be queued for it.
const (
	// baseWindow is the receive window that each stream always has, maxWindow is its maximum. Received data is kept in chunks of
	// baseWindow bytes. While the reader holds one chunk, however empty, another window of data may arrive: a base window costs two chunks.
	baseWindow, maxWindow = 16 << 10, 1 << 20
	// connWindow is the receive window of a connection. It is replenished immediately, because the windows of the streams bound the memory.
	connWindow = 1 << 20
	// baseOut is the number of bytes that may be queued on a connection before calls have to wait; deepOut replaces it while the budget
	// has room. The metadata of one call may exceed both; the budget counts it.
	baseOut, deepOut = 8 << 10, 256 << 10
	// maxAnswers is the number of queued frames that answer frames of the peer. If there are more, reading from the peer pauses.
	maxAnswers = 64
	// maxUpdates is the number of queued window updates. A peer that has caused more, and reads nothing, is disconnected. A pause instead
	// could be a deadlock, in which both ends wait for the other to read.
	maxUpdates = 4096
	// maxFrame is the frame size that every peer must accept (SETTINGS_MAX_FRAME_SIZE).
	maxFrame = 16 << 10
	// MaxMetadata is the maximum size of the metadata of a call in bytes, as HTTP/2 counts it.
	MaxMetadata = 1 << 20
	// freeMetadata is the size up to which the budget does not count metadata.
	freeMetadata = 8 << 10
	// protocolWindow is the initial window of streams and connections in HTTP/2.
	protocolWindow = 1<<16 - 1
)
