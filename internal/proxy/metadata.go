package proxy

import (
	"net/url"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// contentType is the prefix of the content type of every gRPC call.
const contentType = "application/grpc"

// perHop are the headers that are not forwarded: those of one connection or its framing, and the route. Other headers that gRPC reserves
// are not in the metadata, except the encodings, which are forwarded with the unchanged messages.
var perHop = []string{
	"content-type", "content-length", "user-agent", "te", "trailer", TypeKey, NameKey,
	FleetKey, NodeKey, LabelKey, FencingTokenKey,
}

// HopsKey is a metadata key with one value for each proxy that a call has passed. A server that must not be reached through a plugin
// refuses calls that have it: a plugin chooses its endpoint itself, and a proxy connects to it with the proxy's rights.
const HopsKey = "patchbay-hops"

// WillCallKey is a metadata key of calls of grpc.reflection. With it a caller announces that it will call a method next, so the call starts
// a plugin that is started on demand. Other calls of grpc.reflection do not.
const WillCallKey = "patchbay-need"

// rewriteMetadata deletes the headers of one hop from md, which it changes, adds this proxy to the hops and returns md.
func rewriteMetadata(md metadata.MD) metadata.MD {
	for _, key := range perHop {
		delete(md, key)
	}
	md.Append(HopsKey, "1")
	return md
}

// subtypeOf returns the content subtype of a call, for example "json"; usually it is empty.
func subtypeOf(md metadata.MD) string {
	for _, value := range md["content-type"] {
		if subtype := strings.TrimPrefix(strings.ToLower(value), contentType); len(subtype) > 1 && len(subtype) < len(value) {
			return subtype[1:] // without the plus sign or semicolon
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

// The metadata keys with which a caller names the plugin on a socket for many plugins. Their values are percent-encoded, so that metadata
// can contain every type and name. They are not forwarded to the plugin.
const (
	TypeKey = "patchbay-type"
	NameKey = "patchbay-name"
)

// Metadata keys for calls between nodes. The proxy does not forward them in either direction, so that they cannot be forged. Values are
// percent-encoded.
const (
	// FleetKey, on a control socket, sends a call to any node of the fleet. Its value does not matter.
	FleetKey = "patchbay-fleet"
	// NodeKey, on a control socket, sends a call to the node of this name.
	NodeKey = "patchbay-node"
	// LabelKey, on a control socket, sends a call to a node of the fleet with this label, KEY=VALUE. With several, the node must have all.
	LabelKey = "patchbay-node-label"
	// FencingTokenKey carries, in calls to a plugin of which only one instance in the fleet may be active, a decimal number that grows
	// whenever the plugin's lock passes to another node. Only Patchbay sets it.
	FencingTokenKey = "patchbay-fencing-token"
)

// Route returns the metadata for a call to a plugin, as alternating keys and values.
func Route(ptype, name string) []string {
	return []string{TypeKey, url.PathEscape(ptype), NameKey, url.PathEscape(name)}
}

// ParseRoute returns the plugin that the metadata of [Route] names. If the metadata does not name exactly one plugin, the error is a gRPC
// status with codes.Unimplemented.
func ParseRoute(md metadata.MD) (ptype, name string, err error) {
	if ptype, err = routed(md, TypeKey); err == nil {
		name, err = routed(md, NameKey)
	}
	return ptype, name, err
}

func routed(md metadata.MD, key string) (string, error) {
	values := md.Get(key)
	if len(values) != 1 || values[0] == "" {
		return "", status.Errorf(codes.Unimplemented, "the call names no plugin: set the metadata keys %s and %s, once each", TypeKey, NameKey)
	}
	value, err := url.PathUnescape(values[0])
	if err != nil {
		return "", status.Errorf(codes.Unimplemented, "the metadata key %s is not percent-encoded: %v", key, err)
	}
	return value, nil
}
