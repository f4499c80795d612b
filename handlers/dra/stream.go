package dra

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// healthRetry is how long to wait before a health stream is opened again. It starts over when a stream has said something.
var healthRetry = backoff.Backoff{Min: time.Second, Max: 30 * time.Second}

// startHealth keeps the health stream of an instance open, if it offers one. The caller holds h.mu.
func (h *Handler) startHealth(in *instance) {
	if in.health == "" || in.endHealth != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	in.endHealth = cancel
	h.streams.Go(func() { h.keepHealth(ctx, in) })
}

// keepHealth reads the health streams of an instance until ctx ends.
func (h *Handler) keepHealth(ctx context.Context, in *instance) {
	for failures := 1; ; failures++ {
		said, err := h.followHealth(ctx, in)
		if ctx.Err() != nil {
			return
		}
		if said {
			failures = 1
		}
		pause := healthRetry.After(failures)
		h.log.Warn("the health stream of a DRA driver ended and is opened again; its devices become unknown with their timeouts",
			"driver", in.driver, "endpoint", in.endpoint, "pause", pause, "error", err)
		if !backoff.Pause(ctx, pause) {
			return
		}
	}
}

// followHealth reads one health stream, and reports whether it got a message.
func (h *Handler) followHealth(ctx context.Context, in *instance) (said bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := watch(ctx, in)
	if err != nil {
		return false, endpoint.CallError("NodeWatchResources", err)
	}
	var former string
	for {
		report, err := stream.Recv()
		if err != nil {
			return said, endpoint.CallError("NodeWatchResources", err)
		}
		said = true
		problem := h.takeHealth(ctx, in.driver, report.GetDevices())
		if problem == nil {
			former = ""
		} else if text := problem.Error(); text != former {
			former = text
			h.log.Warn("part of a DRA driver's health report was passed over",
				"driver", in.driver, "endpoint", in.endpoint, "error", problem)
		}
	}
}

func watch(ctx context.Context, in *instance) (grpc.ServerStreamingClient[drahealth.NodeWatchResourcesResponse], error) {
	stream, err := in.conn.NewStream(ctx, &drahealth.DRAResourceHealth_ServiceDesc.Streams[0], "/"+in.health+"/NodeWatchResources",
		grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(&drahealth.NodeWatchResourcesRequest{}), stream.CloseSend()); err != nil {
		return nil, err
	}
	return &grpc.GenericClientStream[drahealth.NodeWatchResourcesRequest, drahealth.NodeWatchResourcesResponse]{ClientStream: stream}, nil
}
