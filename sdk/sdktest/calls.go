package sdktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// calls is the host's socket for one launched plugin. It answers the plugin's calls, and sends it admission checks.
type calls struct {
	pluginv1.UnimplementedHostServer
	pluginv1.UnimplementedAdmissionsServer
	ticket       string
	listMetadata func(plugin.Pin) []plugin.Metadata
	hello        chan struct{} // closed when the plugin answers admissions

	sending sync.Mutex // held over a message to the plugin, and never taken with mu

	mu     sync.Mutex
	stream grpc.BidiStreamingServer[pluginv1.AdmitRequest, pluginv1.AdmitResponse]
	last   uint64
	open   map[uint64]chan *pluginv1.Resolution
}

// serve serves until stop is called.
func (c *calls) serve(path string) (stop func(), err error) {
	listener, err := sock.Place(context.Background(), path, 0o600, nil)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	pluginv1.RegisterHostServer(server, c)
	pluginv1.RegisterAdmissionsServer(server, c)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	return func() {
		server.Stop()
		serving.Wait()
	}, nil
}

func (c *calls) authenticate(ctx context.Context) error {
	if !slices.Equal(metadata.ValueFromIncomingContext(ctx, handshake.TicketKey), []string{c.ticket}) {
		return status.Error(codes.Unauthenticated, "the call does not carry the plugin's ticket")
	}
	return nil
}

func (c *calls) ListMetadata(ctx context.Context, request *pluginv1.ListMetadataRequest) (*pluginv1.ListMetadataResponse, error) {
	if err := c.authenticate(ctx); err != nil {
		return nil, err
	}
	pin := plugin.Pin{PackageName: request.GetPin().GetPackageName(), InstanceID: request.GetPin().GetInstanceId()}
	response := &pluginv1.ListMetadataResponse{}
	entries := c.listMetadata(pin)
	if len(request.Keys) > 0 {
		entries = slices.DeleteFunc(slices.Clone(entries), func(m plugin.Metadata) bool { return !slices.Contains(request.Keys, m.Key) })
	}
	// Each page has one entry, so that a plugin that does not read further pages fails its test.
	at, err := strconv.Atoi(cmp.Or(request.PageToken, "0"))
	if err != nil || at < 0 || at > len(entries) {
		return nil, status.Error(codes.InvalidArgument, "the page token is none of this host's")
	}
	for _, m := range entries[at:min(at+1, len(entries))] {
		response.Metadata = append(response.Metadata, &pluginv1.Metadata{
			Key: m.Key, Value: m.Value, ContentType: m.ContentType, Fingerprint: m.Fingerprint,
			AttachedBy: m.AttachedBy, AttachedTime: timestamppb.New(m.AttachedAt),
		})
	}
	if at+1 < len(entries) {
		response.NextPageToken = strconv.Itoa(at + 1)
	}
	return response, nil
}

// Admit takes the plugin's answers until its stream ends.
func (c *calls) Admit(stream grpc.BidiStreamingServer[pluginv1.AdmitRequest, pluginv1.AdmitResponse]) error {
	if err := c.authenticate(stream.Context()); err != nil {
		return err
	}
	for first := true; ; first = false {
		request, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case (request.Hello != nil) != first, first && request.Hello.ProtocolVersion != 1:
			return status.Error(codes.FailedPrecondition, "want one hello of protocol version 1, as the first message")
		}
		c.mu.Lock()
		if first {
			if c.stream != nil {
				c.mu.Unlock()
				return status.Error(codes.FailedPrecondition, "this plugin has a stream of admissions already")
			}
			c.stream = stream
			close(c.hello)
		}
		for _, r := range request.Resolutions {
			if answer := c.open[r.Id]; answer != nil {
				delete(c.open, r.Id)
				answer <- r
			}
		}
		c.mu.Unlock()
	}
}

func (c *calls) check(ctx context.Context, ended <-chan struct{}, pin plugin.Pin) error {
	gone := status.Error(codes.Aborted, "the plugin has ended without an answer")
	select {
	case <-c.hello:
	case <-ended:
		return gone
	case <-ctx.Done():
		return fmt.Errorf("the plugin does not serve admissions: %w", ctx.Err())
	}
	answer := make(chan *pluginv1.Resolution, 1)
	c.mu.Lock()
	c.last++
	c.open[c.last] = answer
	question := &pluginv1.Admission{Id: c.last, Pin: &pluginv1.Pin{PackageName: pin.PackageName, InstanceId: pin.InstanceID}}
	c.mu.Unlock()
	c.sending.Lock()
	err := c.stream.Send(&pluginv1.AdmitResponse{Admissions: []*pluginv1.Admission{question}})
	c.sending.Unlock()
	if err != nil {
		return gone
	}
	select {
	case r := <-answer:
		return status.Error(codes.Code(r.Code), r.Message)
	case <-ended:
		return gone
	case <-ctx.Done():
		return ctx.Err()
	}
}
