package verify

import (
	"context"
	"regexp"
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
	switch {
	case err != nil:
		return fail("GetPluginInfo %s", brief(err))
	case answer.Name != s.asked.info.Name:
		return fail("GetPluginInfo says %s, and the plugin registers as %s", untrusted.Quote(answer.Name), untrusted.Quote(s.asked.info.Name))
	case answer.VendorVersion == "":
		return fail("vendor_version is empty; CSI requires it")
	case len(answer.VendorVersion) > maxCSIString:
		return fail("vendor_version has %d bytes, and CSI allows %d", len(answer.VendorVersion), maxCSIString)
	}
	return pass("%s, version %s", untrusted.Quote(answer.Name), untrusted.Quote(answer.VendorVersion))
}

func checkPluginCapabilities(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if slices.ContainsFunc(answer.GetCapabilities(), func(c *csi.PluginCapability) bool { return c.GetType() == nil }) {
		return warn("a capability has no type, and so no meaning")
	}
	return counted(len(answer.GetCapabilities()), "GetPluginCapabilities", err)
}

func counted(capabilities int, method string, err error) outcome {
	if err != nil {
		return fail("%s %s", method, brief(err))
	}
	return pass("%d capabilities", capabilities)
}

func checkProbe(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	return s.inTime(ctx, func() (bool, outcome) {
		answer, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		switch {
		case err != nil:
			return true, fail("Probe %s", brief(err))
		case answer.Ready != nil && !answer.Ready.Value:
			return false, fail("Probe still says that the driver is not ready after %v", s.options.StartTimeout)
		}
		return true, pass("the driver is ready")
	})
}

func checkNodeCapabilities(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented && controllerAlone(ctx, conn) {
		return notApplicable("the driver serves a controller and no node")
	}
	return counted(len(answer.GetCapabilities()), "NodeGetCapabilities", err)
}

func checkNodeInfo(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented && controllerAlone(ctx, conn):
		return notApplicable("the driver serves a controller and no node")
	case err != nil:
		return fail("NodeGetInfo %s", brief(err))
	case answer.MaxVolumesPerNode < 0:
		return fail("max_volumes_per_node is %d", answer.MaxVolumesPerNode)
	}
	if err := untrusted.Required("node_id", answer.NodeId, maxNodeID); err != nil {
		return fail("%v", err)
	}
	if size := sizeOf(answer.GetAccessibleTopology().GetSegments()); size > maxCSIMapSize {
		return fail("the topology has %d bytes, and CSI allows %d", size, maxCSIMapSize)
	}
	return pass("node %s", untrusted.Quote(answer.NodeId))
}

// controllerAlone reports whether a driver announces a controller and has no Node service at all. One that implements NodeGetCapabilities
// has a node, and the kubelet wants NodeGetInfo of it.
func controllerAlone(ctx context.Context, conn *grpc.ClientConn) bool {
	node := csi.NewNodeClient(conn)
	if _, err := node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}); status.Code(err) != codes.Unimplemented {
		return false
	}
	if _, err := node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{}); status.Code(err) != codes.Unimplemented {
		return false
	}
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	return err == nil && hasService(plugin, csi.PluginCapability_Service_CONTROLLER_SERVICE)
}

// isElsewhere reports whether a server lacks the whole service of a method. The processes of a driver announce the same, and the controller
// is mostly a separate process.
func isElsewhere(err error) bool {
	return status.Code(err) == codes.Unimplemented && strings.HasPrefix(status.Convert(err).Message(), "unknown service ")
}

func checkController(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return notApplicable("the driver does not say whether it has one")
	}
	if !hasService(plugin, csi.PluginCapability_Service_CONTROLLER_SERVICE) {
		return notApplicable("the driver announces no controller")
	}
	can, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	switch {
	case isElsewhere(err):
		return notApplicable("no controller is served here; another process of the driver may do it")
	case status.Code(err) == codes.Unimplemented:
		return fail("the driver announces CONTROLLER_SERVICE, and ControllerGetCapabilities %s", brief(err))
	}
	return counted(len(can.GetCapabilities()), "ControllerGetCapabilities", err)
}

func sizeOf(m map[string]string) int {
	size := 0
	for key, value := range m {
		size += len(key) + len(value)
	}
	return size
}

// topologyPrefix matches the part of a topology key before the slash.
var topologyPrefix = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,61}[a-z0-9])?$`)

// nodeTopology returns the topology of the node, or an outcome if there is none to judge.
func nodeTopology(ctx context.Context, conn *grpc.ClientConn) (map[string]string, outcome) {
	answer, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	switch segments := answer.GetAccessibleTopology().GetSegments(); {
	case err != nil:
		return nil, notApplicable("NodeGetInfo does not answer")
	case len(segments) == 0:
		return nil, notApplicable("the node has no topology")
	default:
		return segments, outcome{}
	}
}

func checkTopology(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	segments, o := nodeTopology(ctx, conn)
	if segments == nil {
		return o
	}
	folded, prefixes := map[string]bool{}, map[string]bool{}
	for key, value := range segments {
		name := key
		if prefix, rest, prefixed := strings.Cut(key, "/"); prefixed {
			if !topologyPrefix.MatchString(prefix) {
				return fail("the prefix of the topology key %s is not a lower-case domain name of at most 63 characters", untrusted.Quote(key))
			}
			name, prefixes[prefix] = rest, true
		}
		if !untrusted.IsSegment(name) || !untrusted.IsSegment(value) {
			return fail("the topology has the segment %s=%s; names and values are 1 to 63 letters, digits, '-', '_' and '.', with a letter or "+
				"digit first and last", untrusted.Quote(key), untrusted.Quote(value))
		}
		if folded[strings.ToLower(key)] {
			return fail("the topology key %s appears twice, in upper and lower case", untrusted.Quote(key))
		}
		folded[strings.ToLower(key)] = true
	}
	if len(prefixes) > 1 {
		return warn("the topology keys have %d different prefixes, and CSI requires a common one; Kubernetes accepts them", len(prefixes))
	}
	return pass("%d keys", len(segments))
}

func checkTopologyAnnounced(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	segments, o := nodeTopology(ctx, conn)
	if segments == nil {
		return o
	}
	answer, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	switch {
	case err != nil:
		return notApplicable("GetPluginCapabilities does not answer")
	case !hasService(answer, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS):
		return fail("the node has a topology, and the driver does not announce VOLUME_ACCESSIBILITY_CONSTRAINTS")
	}
	return pass("the driver announces that its volumes are not the same for all nodes")
}

func hasService(answer *csi.GetPluginCapabilitiesResponse, service csi.PluginCapability_Service_Type) bool {
	return slices.ContainsFunc(answer.GetCapabilities(), func(c *csi.PluginCapability) bool { return c.GetService().GetType() == service })
}

// checkExpansion judges only a driver that serves both: controller and node may be two processes, which announce the same.
func checkExpansion(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return notApplicable("GetPluginCapabilities does not answer")
	}
	i := slices.IndexFunc(plugin.GetCapabilities(), func(c *csi.PluginCapability) bool { return c.GetVolumeExpansion() != nil })
	if i < 0 {
		return notApplicable("the driver announces no expansion of volumes")
	}
	expansion := plugin.Capabilities[i].GetVolumeExpansion().GetType()
	controller, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return notApplicable("no controller is served here")
	}
	if controllerHas(controller, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME) {
		return pass("the controller expands volumes, as %v requires", expansion)
	}
	node, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return notApplicable("no node is served here")
	}
	if expansion == csi.PluginCapability_VolumeExpansion_ONLINE && slices.ContainsFunc(node.GetCapabilities(),
		func(c *csi.NodeServiceCapability) bool {
			return c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_EXPAND_VOLUME
		}) {
		return pass("the node expands volumes, as %v requires", expansion)
	}
	return fail("the driver announces the expansion %v, and has no EXPAND_VOLUME for it", expansion)
}

func checkManifest(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	size := sizeOf(answer.GetManifest())
	switch {
	case err != nil:
		return notApplicable("GetPluginInfo does not answer")
	case size > maxCSIMapSize:
		return fail("the manifest has %d bytes, and CSI allows %d", size, maxCSIMapSize)
	}
	return pass("the manifest has %d bytes", size)
}

func checkGroupController(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil || !hasService(plugin, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE) {
		return notApplicable("the driver announces no group controller")
	}
	can, err := csi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
	if isElsewhere(err) {
		return notApplicable("no group controller is served here; another process of the driver may do it")
	}
	return counted(len(can.GetCapabilities()), "GroupControllerGetCapabilities", err)
}

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
