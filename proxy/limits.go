package proxy

// What the proxy carries at most. The bounds are far above what gRPC's own defaults allow the ends, so that those decide.
const (
	// MaxMessageSize is the size in bytes of the largest message.
	MaxMessageSize = 256 << 20
	// MaxMetadataSize is the size in bytes, as HTTP/2 counts it, of the largest header or trailer.
	MaxMetadataSize = 1 << 20
	// MaxHops is how many proxies a call may come through. One to a plugin whose endpoint is a socket of the proxy would come back for ever.
	MaxHops = 8
)
