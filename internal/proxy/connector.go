package proxy

import (
	"context"

	"google.golang.org/grpc"
)

// Connector connects to plugins by type, or role, and name. The registry of a node is one.
type Connector interface {
	Conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error)
}

// ConnTo returns a connection to a plugin. Each call is made on the instance that is current when the call begins. Errors name the plugin.
func ConnTo(ctx context.Context, plugins Connector, ptype, name string) (grpc.ClientConnInterface, error) {
	called := "plugin " + ptype + "/" + name
	conn, err := plugins.Conn(ctx, ptype, name)
	if err != nil {
		return nil, CallError(called, err)
	}
	return Named(conn, called), nil
}
