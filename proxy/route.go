package proxy

import (
	"errors"
	"fmt"
	"net/url"

	"google.golang.org/grpc/metadata"
)

// The metadata keys by which a caller says which plugin a call is for where one socket leads to many. Their values are percent-encoded, so
// that every type and name fits into metadata. The plugin does not see them.
const (
	TypeKey = "patchbay-type"
	NameKey = "patchbay-name"
)

// Metadata keys for calls between nodes. The proxy forwards none of them, so that neither a plugin nor a caller can be deceived by one that
// was not meant for it. Values are percent-encoded.
const (
	// FleetKey, on a control socket, has a call go to any node of the fleet. Calls with the same value, which may be any text, go to the
	// same node for as long as that can be called.
	FleetKey = "patchbay-fleet"
	// NodeKey, on a control socket, has a call go to the node of this name.
	NodeKey = "patchbay-node"
	// FencingTokenKey has, in calls to a plugin of which only one instance in the fleet may be active, a decimal number that grows whenever
	// the lock of the plugin passes to another node. Only Patchbay sets it.
	FencingTokenKey = "patchbay-fencing-token"
)

// Route returns the metadata that leads a call to a plugin, as key and value in turn.
func Route(ptype, name string) []string {
	return []string{TypeKey, url.PathEscape(ptype), NameKey, url.PathEscape(name)}
}

// ParseRoute returns the plugin to which [Route] leads. Metadata that names none, or not exactly one, is an error.
func ParseRoute(md metadata.MD) (ptype, name string, err error) {
	if ptype, err = routed(md, TypeKey); err != nil {
		return "", "", err
	}
	if name, err = routed(md, NameKey); err != nil {
		return "", "", err
	}
	return ptype, name, nil
}

func routed(md metadata.MD, key string) (string, error) {
	values := md.Get(key)
	if len(values) != 1 || values[0] == "" {
		return "", fmt.Errorf("the call names no plugin: set the metadata keys %s and %s, once each", TypeKey, NameKey)
	}
	value, err := url.PathUnescape(values[0])
	if err != nil {
		return "", fmt.Errorf("the metadata key %s is not percent-encoded: %w", key, errors.Unwrap(err))
	}
	return value, nil
}
