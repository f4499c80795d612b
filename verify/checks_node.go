package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// together are the capabilities of a controller that need another one.
var together = map[csi.ControllerServiceCapability_RPC_Type]csi.ControllerServiceCapability_RPC_Type{
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH:           csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
}

func checkCapabilitiesTogether(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return notApplicable("no controller is served here")
	}
	for one, other := range together {
		if controllerHas(answer, one) && !controllerHas(answer, other) {
			return fail("the controller announces %v, and not %v, which that needs", one, other)
		}
	}
	return pass("none lacks another one")
}

func checkCapacity(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	client := csi.NewControllerClient(conn)
	can, err := client.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil || !controllerHas(can, csi.ControllerServiceCapability_RPC_GET_CAPACITY) {
		return notApplicable("no controller is served here that announces GET_CAPACITY")
	}
	answer, err := client.GetCapacity(ctx, &csi.GetCapacityRequest{})
	if err != nil {
		return fail("GetCapacity %s", brief(err))
	}
	if least := min(answer.AvailableCapacity, answer.GetMaximumVolumeSize().GetValue(), answer.GetMinimumVolumeSize().GetValue()); least < 0 {
		return fail("GetCapacity says %d bytes: %s", least, show(answer))
	}
	return pass("%d bytes", answer.AvailableCapacity)
}

func controllerHas(answer *csi.ControllerGetCapabilitiesResponse, rpc csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.ContainsFunc(answer.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool { return c.GetRpc().GetType() == rpc })
}

// nodeCall is a call of the Node service without anything in its request, which a driver refuses before it does anything.
type nodeCall struct {
	method string
	call   func(ctx context.Context, c csi.NodeClient) error
}

// asError returns a call that ignores the answer.
func asError[Q, A any](method string, call func(csi.NodeClient, context.Context, *Q, ...grpc.CallOption) (*A, error)) nodeCall {
	return nodeCall{method, func(ctx context.Context, c csi.NodeClient) error {
		_, err := call(c, ctx, new(Q))
		return err
	}}
}

var (
	// always are the calls that each node has to have, and byCapability those of a capability.
	always = []nodeCall{
		asError("NodePublishVolume", csi.NodeClient.NodePublishVolume), asError("NodeUnpublishVolume", csi.NodeClient.NodeUnpublishVolume),
	}
	byCapability = map[csi.NodeServiceCapability_RPC_Type][]nodeCall{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: {
			asError("NodeStageVolume", csi.NodeClient.NodeStageVolume), asError("NodeUnstageVolume", csi.NodeClient.NodeUnstageVolume),
		},
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS:   {asError("NodeGetVolumeStats", csi.NodeClient.NodeGetVolumeStats)},
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME:      {asError("NodeExpandVolume", csi.NodeClient.NodeExpandVolume)},
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH:  {asError("NodeGetVolumeHealth", csi.NodeClient.NodeGetVolumeHealth)},
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH: {asError("NodeGetStorageHealth", csi.NodeClient.NodeGetStorageHealth)},
	}
)

// nodeCalls returns the calls that a node announces, or an outcome if there is no node to judge.
func nodeCalls(ctx context.Context, conn *grpc.ClientConn) ([]nodeCall, outcome) {
	answer, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return nil, notApplicable("no node says what it can")
	}
	calls := slices.Clone(always)
	for _, c := range answer.GetCapabilities() {
		calls = append(calls, byCapability[c.GetRpc().GetType()]...)
	}
	return calls, outcome{}
}

func checkNodeImplements(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	calls, o := nodeCalls(ctx, conn)
	if o.status != "" {
		return o
	}
	for _, c := range calls {
		if err := c.call(ctx, csi.NewNodeClient(conn)); status.Code(err) == codes.Unimplemented {
			return fail("%s, which the node announces or has to have, %s", c.method, brief(err))
		}
	}
	return pass("%d calls are there", len(calls))
}

// wordless returns what an error lacks of what CSI demands; empty if nothing.
func wordless(err error) string {
	switch st := status.Convert(err); {
	case st.Message() == "":
		return "has no message"
	case st.Code() > codes.Unauthenticated:
		return fmt.Sprintf("has the code %d, which does not exist of gRPC's", st.Code())
	case len(st.Proto().GetDetails()) > 0:
		return "has details, which CSI forbids"
	}
	return ""
}

func checkRefusalSpeaks(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	calls, o := nodeCalls(ctx, conn)
	if o.status != "" {
		return o
	}
	n := 0
	for _, c := range calls {
		err := c.call(ctx, csi.NewNodeClient(conn))
		if err == nil || !answered(err) {
			continue // whether it must refuse is for csi-sanity, and whether it is there for another rule
		}
		n++
		if wrong := wordless(err); wrong != "" {
			return fail("a call of %s without anything in it is refused with %v, and the refusal %s", c.method, status.Code(err), wrong)
		}
	}
	if n == 0 {
		return notApplicable("nothing was refused")
	}
	return pass("%d refusals say what is wrong", n)
}
