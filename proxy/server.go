package proxy

import (
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // the one encoding that every gRPC implementation has
	"google.golang.org/grpc/keepalive"
)

// minPing is how often a caller may ping its connection. Nobody is told off who would not be by a plugin of another implementation.
const minPing = time.Second

// ServerOptions are the options that a server of [Handler] needs.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(MaxMessageSize),
		grpc.MaxSendMsgSize(MaxMessageSize),
		grpc.MaxHeaderListSize(MaxMetadataSize),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
}

// NewServer returns a server that forwards every call to where the handler leads it, mostly a [Handler].
func NewServer(handler grpc.StreamHandler, options ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(append(ServerOptions(), grpc.UnknownServiceHandler(handler)), options...)...)
}
