package verify

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// Limits of the CSI specification, in bytes.
const (
	maxNodeID     = 256
	maxCSIString  = 128
	maxCSIMapSize = 4 << 10
)

func csiRules() []Rule {
	rules := []Rule{
		{
			ID: "CSI001", Title: "GetPluginInfo names the driver as it is registered",
			Why:    "The name ties volumes to the driver; with two names, they are looked for under one that nobody registered.",
			Remedy: "return the registered name from Identity.GetPluginInfo, and a vendor_version",
			check:  checkPluginInfo,
		},
		{
			ID: "CSI002", Title: "GetPluginCapabilities answers",
			Why:    "From it, hosts learn whether there is a controller, and what the node has to say of topology.",
			Remedy: "implement Identity.GetPluginCapabilities; an empty list is allowed",
			check:  checkPluginCapabilities,
		},
		{
			ID: "CSI003", Title: "Probe says that the driver is ready",
			Why:    "Hosts wait with a driver that is not ready, or refuse it.",
			Remedy: "implement Identity.Probe: answer without \"ready\" or with true as soon as the driver works",
			check:  checkProbe,
		},
		{
			ID: "CSI004", Title: "NodeGetCapabilities answers",
			Why:    "It is the first call before each mount: without it no volume is staged or published.",
			Remedy: "implement Node.NodeGetCapabilities on the endpoint; an empty list is allowed",
			check:  checkNodeCapabilities,
		},
		{
			ID: "CSI005", Title: "NodeGetInfo names the node within the limits",
			Why: "The kubelet writes the node ID and the topology into the cluster when it registers the driver, and does not register one " +
				"that has none.",
			Remedy: "return a node_id of 1 to 256 bytes, max_volumes_per_node of zero or more, and a topology of at most 4 KiB",
			check:  checkNodeInfo,
		},
		{
			ID: "CSI006", Title: "The controller, if it is announced, answers",
			Why:    "A driver with the capability CONTROLLER_SERVICE is asked to make volumes.",
			Remedy: "implement Controller.ControllerGetCapabilities, or do not announce CONTROLLER_SERVICE",
			check:  checkController,
		},
	}
	for i := range rules {
		rules[i].Type = registerapi.CSIPlugin
	}
	return rules
}

func checkPluginInfo(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(info *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		answer, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		switch {
		case err != nil:
			return fail("GetPluginInfo %s", brief(err))
		case answer.Name != info.Name:
			return fail("GetPluginInfo says %s, and the plugin registers as %s", foreign.Quote(answer.Name), foreign.Quote(info.Name))
		case answer.VendorVersion == "":
			return fail("vendor_version is empty; CSI requires it")
		case len(answer.VendorVersion) > maxCSIString:
			return fail("vendor_version has %d bytes, and CSI allows %d", len(answer.VendorVersion), maxCSIString)
		}
		return pass("%s, version %s", foreign.Quote(answer.Name), foreign.Quote(answer.VendorVersion))
	})
}

func checkPluginCapabilities(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		answer, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
		if err != nil {
			return fail("GetPluginCapabilities %s", brief(err))
		}
		for _, c := range answer.Capabilities {
			if c.GetType() == nil {
				return warn("a capability has no type, so it says nothing")
			}
		}
		return pass("%d capabilities", len(answer.Capabilities))
	})
}

func checkProbe(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		answer, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		switch {
		case err != nil:
			return fail("Probe %s", brief(err))
		case answer.Ready != nil && !answer.Ready.Value:
			return fail("Probe says that the driver is not ready")
		}
		return pass("the driver is ready")
	})
}

func checkNodeCapabilities(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		answer, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		if status.Code(err) == codes.Unimplemented && controllerAlone(ctx, conn) {
			return notApplicable("the driver serves a controller and no node")
		}
		if err != nil {
			return fail("NodeGetCapabilities %s", brief(err))
		}
		return pass("%d capabilities", len(answer.Capabilities))
	})
}

func checkNodeInfo(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		answer, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		switch {
		case status.Code(err) == codes.Unimplemented && controllerAlone(ctx, conn):
			return notApplicable("the driver serves a controller and no node")
		case err != nil:
			return fail("NodeGetInfo %s", brief(err))
		case answer.MaxVolumesPerNode < 0:
			return fail("max_volumes_per_node is %d", answer.MaxVolumesPerNode)
		}
		if err := foreign.Required("node_id", answer.NodeId, maxNodeID); err != nil {
			return fail("%v", err)
		}
		size := 0
		for key, value := range answer.GetAccessibleTopology().GetSegments() {
			size += len(key) + len(value)
			if key == "" || value == "" {
				return fail("the topology has the segment %s=%s", foreign.Quote(key), foreign.Quote(value))
			}
		}
		if size > maxCSIMapSize {
			return fail("the topology has %d bytes, and CSI allows %d", size, maxCSIMapSize)
		}
		return pass("node %s", foreign.Quote(answer.NodeId))
	})
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
	announced, err := announcesController(ctx, conn)
	return err == nil && announced
}

func announcesController(ctx context.Context, conn *grpc.ClientConn) (bool, error) {
	answer, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	return slices.ContainsFunc(answer.GetCapabilities(), func(c *csi.PluginCapability) bool {
		return c.GetService().GetType() == csi.PluginCapability_Service_CONTROLLER_SERVICE
	}), err
}

func checkController(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		announced, err := announcesController(ctx, conn)
		if err != nil {
			return notApplicable("the driver does not say whether it has one")
		}
		if !announced {
			return notApplicable("the driver announces no controller")
		}
		can, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		if status.Code(err) == codes.Unimplemented {
			return fail("the driver announces CONTROLLER_SERVICE, and ControllerGetCapabilities %s", brief(err))
		}
		if err != nil {
			return fail("ControllerGetCapabilities %s", brief(err))
		}
		return pass("%d capabilities", len(can.Capabilities))
	})
}
