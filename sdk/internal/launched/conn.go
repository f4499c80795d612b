package launched

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// dial returns a connection to the host, which is made when the first call needs it.
func dial(shake handshake.Handshake) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///patchbay-host",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a private socket, on which the kernel names the peer
		grpc.WithPerRPCCredentials(ticket(shake.Ticket)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, shake.HostSocket) }),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the host at %s: %w", shake.HostSocket, err)
	}
	return conn, nil
}

// ticket attaches itself to every call.
type ticket string

func (t ticket) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{handshake.TicketKey: string(t)}, nil
}

func (ticket) RequireTransportSecurity() bool { return false }
