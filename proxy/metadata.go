package proxy

import (
	"strings"

	"google.golang.org/grpc/metadata"
)

// contentType is the prefix of the content type of every gRPC call.
const contentType = "application/grpc"

// perHop are the headers that belong to one connection or to its framing, and the route. Whatever else gRPC reserves does not reach the
// metadata, or not the wire.
var perHop = []string{
	"content-type", "content-length", "user-agent", "te", "trailer", "grpc-encoding", "grpc-accept-encoding", TypeKey, NameKey,
	FleetKey, NodeKey, FencingTokenKey,
}

// HopsKey is the metadata that a forwarded call has one value of for each proxy through which it came. Whoever serves what is not to be
// reached through a plugin refuses calls that have it: a plugin says itself where its endpoint is, and a proxy connects there with its own
// rights.
const HopsKey = "patchbay-hops"

// forwarded takes from md, which it changes, what is not for the other end, and adds this hop.
func forwarded(md metadata.MD) metadata.MD {
	for _, key := range perHop {
		delete(md, key)
	}
	md.Append(HopsKey, "1")
	return md
}

// subtypeOf returns the content subtype of a call, for example "json"; mostly it is empty.
func subtypeOf(md metadata.MD) string {
	for _, value := range md["content-type"] {
		if subtype := strings.TrimPrefix(strings.ToLower(value), contentType); len(subtype) > 1 && len(subtype) < len(value) {
			return subtype[1:] // behind a plus sign or a semicolon
		}
	}
	return ""
}

// sizeOf returns the size of metadata as HTTP/2 counts it (RFC 9113, section 6.5.2).
func sizeOf(md metadata.MD) int {
	size := 0
	for key, values := range md {
		for _, value := range values {
			size += len(key) + len(value) + 32
		}
	}
	return size
}
