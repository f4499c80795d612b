package verify

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"google.golang.org/grpc"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// launchingHost is the host that a plugin which was started with a handshake finds: it takes the plugin's log, and grants nothing else.
type launchingHost struct {
	pluginv1.UnimplementedHostServer

	path   string
	server *grpc.Server
	served sync.WaitGroup
	log    io.Writer
}

func serveHost(path string, log io.Writer) (*launchingHost, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot play the host of the plugin, with a socket of %d bytes at most at %s: %w", sock.MaxPath, path, err)
	}
	h := &launchingHost{path: path, server: grpc.NewServer(), log: log}
	pluginv1.RegisterHostServer(h.server, h)
	h.served.Go(func() { _ = h.server.Serve(listener) }) // it ends with close
	return h, nil
}

func (h *launchingHost) close() {
	h.server.Stop()
	h.served.Wait()
}

// Log writes what a plugin logs to where its output goes.
func (h *launchingHost) Log(stream grpc.ClientStreamingServer[pluginv1.LogRequest, pluginv1.LogResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return stream.SendAndClose(&pluginv1.LogResponse{})
		}
		for _, r := range request.Records {
			fmt.Fprintf(h.log, "%s\n", r.Message)
		}
	}
}
