package frames

import (
	"context"

	"google.golang.org/grpc"
)

// Intercept returns a client whose calls an interceptor sees; the client itself if there is none.
func Intercept(c *Client, by grpc.StreamClientInterceptor) Conn {
	if by == nil {
		return c
	}
	return &intercepted{c, by}
}

// Conn is a connection that can be closed.
type Conn interface {
	grpc.ClientConnInterface
	Close() error
}

type intercepted struct {
	*Client
	by grpc.StreamClientInterceptor
}

func (c *intercepted) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	open := func(
		ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return c.Client.NewStream(ctx, desc, method, options...)
	}
	return c.by(ctx, desc, nil, method, open, options...)
}
