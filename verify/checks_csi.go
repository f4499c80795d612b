package verify

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Limits of the CSI specification, in bytes.
const (
	maxNodeID     = 256
	maxCSIString  = 128
	maxCSIMapSize = 4 << 10
)

func checkPluginInfo(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	s.vendor = answer.GetVendorVersion()
	requireCall("GetPluginInfo", err)
	require(answer.Name == s.asked.info.Name, "GetPluginInfo says %s, and the plugin registers as %s",
		untrusted.Quote(answer.Name), untrusted.Quote(s.asked.info.Name))
	require(s.vendor != "", "vendor_version is empty; CSI requires it")
	require(len(s.vendor) <= maxCSIString, "vendor_version has %d bytes, and CSI allows %d", len(s.vendor), maxCSIString)
	return pass("%s, version %s", untrusted.Quote(answer.Name), untrusted.Quote(s.vendor))
}

func pluginCapabilities(ctx context.Context, conn *grpc.ClientConn) (*csi.GetPluginCapabilitiesResponse, error) {
	return csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
}

func checkPluginCapabilities(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := pluginCapabilities(ctx, conn)
	untyped := slices.ContainsFunc(answer.GetCapabilities(), func(c *csi.PluginCapability) bool { return c.GetType() == nil })
	expect(!untyped, "a capability has no type, and so no meaning")
	return counted(len(answer.GetCapabilities()), "GetPluginCapabilities", err)
}

func counted(capabilities int, method string, err error) outcome {
	requireCall(method, err)
	return pass("%d capabilities", capabilities)
}

func checkProbe(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	ready := s.inTime(ctx, func() bool {
		answer, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		requireCall("Probe", err)
		return answer.Ready == nil || answer.Ready.Value
	})
	require(ready, "Probe still says that the driver is not ready after %v", s.options.StartTimeout)
	return pass("the driver is ready")
}

func checkNodeCapabilities(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	assumeNode(ctx, conn, err)
	return counted(len(answer.GetCapabilities()), "NodeGetCapabilities", err)
}

func checkNodeInfo(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	assumeNode(ctx, conn, err)
	requireCall("NodeGetInfo", err)
	require(answer.MaxVolumesPerNode >= 0, "max_volumes_per_node is %d", answer.MaxVolumesPerNode)
	requireValid(untrusted.Required("node_id", answer.NodeId, maxNodeID))
	size := sizeOf(answer.GetAccessibleTopology().GetSegments())
	require(size <= maxCSIMapSize, "the topology has %d bytes, and CSI allows %d", size, maxCSIMapSize)
	return pass("node %s", untrusted.Quote(answer.NodeId))
}

// assumeNode ends the check as not applicable if a method is not implemented because the driver announces a controller and has no Node
// service at all. A driver that implements NodeGetCapabilities has a node, and the kubelet calls its NodeGetInfo.
func assumeNode(ctx context.Context, conn *grpc.ClientConn, err error) {
	if status.Code(err) != codes.Unimplemented {
		return
	}
	node := csi.NewNodeClient(conn)
	_, infoErr := node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	_, capabilitiesErr := node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	plugin, _ := pluginCapabilities(ctx, conn) // it has no services if the call fails
	served := status.Code(infoErr) != codes.Unimplemented || status.Code(capabilitiesErr) != codes.Unimplemented
	assume(served || !hasService(plugin, csi.PluginCapability_Service_CONTROLLER_SERVICE), "the driver serves a controller and no node")
}

// isElsewhere reports whether a server lacks the whole service of a method. The processes of a driver announce the same, and the controller
// is mostly a separate process.
func isElsewhere(err error) bool {
	return status.Code(err) == codes.Unimplemented && strings.HasPrefix(status.Convert(err).Message(), "unknown service ")
}

func checkController(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	plugin, err := pluginCapabilities(ctx, conn)
	assume(err == nil, "the driver does not say whether it has one")
	assume(hasService(plugin, csi.PluginCapability_Service_CONTROLLER_SERVICE), "the driver announces no controller")
	can, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	assume(!isElsewhere(err), "no controller is served here; another process of the driver may do it")
	require(status.Code(err) != codes.Unimplemented, "the driver announces CONTROLLER_SERVICE, and ControllerGetCapabilities %s", brief(err))
	return counted(len(can.GetCapabilities()), "ControllerGetCapabilities", err)
}

func sizeOf(m map[string]string) int {
	size := 0
	for key, value := range m {
		size += len(key) + len(value)
	}
	return size
}

// nodeTopology returns the topology of the node. It ends the check if there is none to judge.
func nodeTopology(ctx context.Context, conn *grpc.ClientConn) map[string]string {
	answer, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	assume(err == nil, "NodeGetInfo does not answer")
	segments := answer.GetAccessibleTopology().GetSegments()
	assume(len(segments) > 0, "the node has no topology")
	return segments
}

func checkTopology(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	segments := nodeTopology(ctx, conn)
	requireValid(untrusted.Topology(segments))
	prefixes := map[string]bool{}
	for key := range segments {
		if prefix, _, prefixed := strings.Cut(key, "/"); prefixed {
			prefixes[prefix] = true
		}
	}
	expect(len(prefixes) <= 1, "the topology keys have %d different prefixes, and CSI requires a common one; Kubernetes accepts them",
		len(prefixes))
	return pass("%d keys", len(segments))
}

func checkTopologyAnnounced(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	nodeTopology(ctx, conn)
	answer, err := pluginCapabilities(ctx, conn)
	assume(err == nil, "GetPluginCapabilities does not answer")
	require(hasService(answer, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		"the node has a topology, and the driver does not announce VOLUME_ACCESSIBILITY_CONSTRAINTS")
	return pass("the driver announces that its volumes are not the same for all nodes")
}

func hasService(answer *csi.GetPluginCapabilitiesResponse, service csi.PluginCapability_Service_Type) bool {
	return slices.ContainsFunc(answer.GetCapabilities(), func(c *csi.PluginCapability) bool { return c.GetService().GetType() == service })
}

// checkExpansion judges only a driver that serves both: controller and node may be two processes, which announce the same.
func checkExpansion(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	plugin, err := pluginCapabilities(ctx, conn)
	assume(err == nil, "GetPluginCapabilities does not answer")
	i := slices.IndexFunc(plugin.GetCapabilities(), func(c *csi.PluginCapability) bool { return c.GetVolumeExpansion() != nil })
	assume(i >= 0, "the driver announces no expansion of volumes")
	expansion := plugin.Capabilities[i].GetVolumeExpansion().GetType()
	if controllerHas(controllerCapabilities(ctx, conn), csi.ControllerServiceCapability_RPC_EXPAND_VOLUME) {
		return pass("the controller expands volumes, as %v requires", expansion)
	}
	node, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	assume(err == nil, "no node is served here")
	expands := slices.ContainsFunc(node.GetCapabilities(), func(c *csi.NodeServiceCapability) bool {
		return c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_EXPAND_VOLUME
	})
	require(expands && expansion == csi.PluginCapability_VolumeExpansion_ONLINE,
		"the driver announces the expansion %v, and has no EXPAND_VOLUME for it", expansion)
	return pass("the node expands volumes, as %v requires", expansion)
}

func checkManifest(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	assume(err == nil, "GetPluginInfo does not answer")
	size := sizeOf(answer.GetManifest())
	require(size <= maxCSIMapSize, "the manifest has %d bytes, and CSI allows %d", size, maxCSIMapSize)
	return pass("the manifest has %d bytes", size)
}

func checkGroupController(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	plugin, _ := pluginCapabilities(ctx, conn) // it has no services if the call fails
	assume(hasService(plugin, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE), "the driver announces no group controller")
	can, err := csi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
	assume(!isElsewhere(err), "no group controller is served here; another process of the driver may do it")
	return counted(len(can.GetCapabilities()), "GroupControllerGetCapabilities", err)
}

// together are the capabilities of a controller that need another one.
var together = map[csi.ControllerServiceCapability_RPC_Type]csi.ControllerServiceCapability_RPC_Type{
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH:           csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
}

func checkCapabilitiesTogether(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	can := controllerCapabilities(ctx, conn)
	for one, other := range together {
		require(!controllerHas(can, one) || controllerHas(can, other), "the controller announces %v, and not %v, which that needs", one, other)
	}
	return pass("none lacks another one")
}

func checkCapacity(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	client := csi.NewControllerClient(conn)
	can, _ := client.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{}) // none if the call fails
	assume(controllerHas(can, csi.ControllerServiceCapability_RPC_GET_CAPACITY), "no controller is served here that announces GET_CAPACITY")
	answer, err := client.GetCapacity(ctx, &csi.GetCapacityRequest{})
	requireCall("GetCapacity", err)
	least := min(answer.AvailableCapacity, answer.GetMaximumVolumeSize().GetValue(), answer.GetMinimumVolumeSize().GetValue())
	require(least >= 0, "GetCapacity says %d bytes: %s", least, show(answer))
	return pass("%d bytes", answer.AvailableCapacity)
}

// controllerCapabilities returns the capabilities of the controller. It ends the check if none is served.
func controllerCapabilities(ctx context.Context, conn *grpc.ClientConn) *csi.ControllerGetCapabilitiesResponse {
	answer, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	assume(err == nil, "no controller is served here")
	return answer
}

func controllerHas(answer *csi.ControllerGetCapabilitiesResponse, rpc csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.ContainsFunc(answer.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool { return c.GetRpc().GetType() == rpc })
}
