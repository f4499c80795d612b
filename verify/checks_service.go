package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// answering is a check of a plugin that says what it is, so that what is found is an effect of the check. It finds that in s.asked.
func answering(check func(ctx context.Context, s *subject) outcome) func(context.Context, *subject) outcome {
	return func(ctx context.Context, s *subject) outcome {
		if _, o := s.info(ctx); o.status != "" {
			return o
		}
		return check(ctx, s)
	}
}

// onEndpoint is a check of an answering plugin that calls its own services, on a connection to its endpoint.
func onEndpoint(check func(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome) func(context.Context, *subject) outcome {
	return answering(func(ctx context.Context, s *subject) outcome {
		path, err := s.endpoint(s.asked.info)
		if err != nil {
			return notApplicable("there is no endpoint to ask: %v", err)
		}
		conn, err := dial(path, s.options.CallTimeout, &s.trace)
		if err != nil {
			return fail("%v", err)
		}
		defer conn.Close()
		return check(ctx, s, conn)
	})
}

func checkHealth(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return notApplicable("the endpoint has no grpc.health.v1")
	case status.Code(err) == codes.Unavailable:
		return notApplicable("the endpoint cannot be reached")
	case status.Code(err) == codes.NotFound:
		return warn("the health service knows nothing of the service \"\", the plugin as a whole")
	case err != nil:
		return fail("Check %s", brief(err))
	case answer.Status != grpc_health_v1.HealthCheckResponse_SERVING:
		return fail("the health is %v", answer.Status)
	}
	return s.checkHealthOfServices(ctx, conn)
}

// maxHealthChecked bounds for how many services the health is asked.
const maxHealthChecked = 16

// checkHealthOfServices asks for the health of each service that reflection shows, which clients may ask for instead of that of the whole.
// A service that the health service does not know is none that it speaks for.
func (s *subject) checkHealthOfServices(ctx context.Context, conn *grpc.ClientConn) outcome {
	names, err := s.reflected(ctx, conn)
	if err != nil {
		names = nil // whether there is reflection is for another rule
	}
	for _, name := range names[:min(len(names), maxHealthChecked)] {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
		if err == nil && answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			return warn("the health is SERVING, but that of the service %s is %v", foreign.Quote(name), answer.Status)
		}
	}
	return pass("the health is SERVING")
}

func checkReflection(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	names, err := s.reflected(ctx, conn)
	switch {
	case status.Code(err) == codes.Unimplemented:
		return notApplicable("the endpoint has no reflection")
	case status.Code(err) == codes.Unavailable:
		return notApplicable("the endpoint cannot be reached")
	case err != nil:
		return fail("the list of services %s", brief(err))
	}
	own := slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "grpc.") || strings.HasPrefix(name, "pluginregistration.")
	})
	if len(own) == 0 {
		return fail("the endpoint has no service but those for registration, health and reflection")
	}
	return pass("the endpoint has %s", foreign.QuoteAll(own))
}

// reflected returns the names of the services.
func (s *subject) reflected(ctx context.Context, conn *grpc.ClientConn) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.CallTimeout)
	defer cancel()
	request := &grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}
	var answer *grpc_reflection_v1.ServerReflectionResponse
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err == nil {
		_ = stream.Send(request) // Recv says why it failed
		answer, err = stream.Recv()
	}
	s.trace.addCall(grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName, request, answer, err)
	if err != nil {
		return nil, err
	}
	list := answer.GetListServicesResponse()
	if list == nil {
		return nil, errors.New("was answered with something else")
	}
	var names []string
	for _, service := range list.Service {
		names = append(names, service.Name)
	}
	return names, nil
}

// Limits of the CSI specification, in bytes.
const (
	maxNodeID     = 256
	maxCSIString  = 128
	maxCSIMapSize = 4 << 10
)

func checkPluginInfo(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	switch {
	case err != nil:
		return fail("GetPluginInfo %s", brief(err))
	case answer.Name != s.asked.info.Name:
		return fail("GetPluginInfo says %s, and the plugin registers as %s", foreign.Quote(answer.Name), foreign.Quote(s.asked.info.Name))
	case answer.VendorVersion == "":
		return fail("vendor_version is empty; CSI requires it")
	case len(answer.VendorVersion) > maxCSIString:
		return fail("vendor_version has %d bytes, and CSI allows %d", len(answer.VendorVersion), maxCSIString)
	}
	return pass("%s, version %s", foreign.Quote(answer.Name), foreign.Quote(answer.VendorVersion))
}

func checkPluginCapabilities(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if slices.ContainsFunc(answer.GetCapabilities(), func(c *csi.PluginCapability) bool { return c.GetType() == nil }) {
		return warn("a capability has no type, so it says nothing")
	}
	return counted(len(answer.GetCapabilities()), "GetPluginCapabilities", err)
}

// counted is the outcome of a call that answers with capabilities.
func counted(capabilities int, method string, err error) outcome {
	if err != nil {
		return fail("%s %s", method, brief(err))
	}
	return pass("%d capabilities", capabilities)
}

func checkProbe(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	answer, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
	switch {
	case err != nil:
		return fail("Probe %s", brief(err))
	case answer.Ready != nil && !answer.Ready.Value:
		return fail("Probe says that the driver is not ready")
	}
	return pass("the driver is ready")
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

func checkController(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
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
	return counted(len(can.GetCapabilities()), "ControllerGetCapabilities", err)
}

const (
	maxDevices = 10_000
	// lasting is how long a stream that is to last is looked at after its first message.
	lasting = 250 * time.Millisecond
)

func deviceVersions() []string { return deviceapi.SupportedVersions[:] }

func checkDeviceOptions(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	if _, err := deviceapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &deviceapi.Empty{}); err != nil {
		return fail("GetDevicePluginOptions %s", brief(err))
	}
	return pass("it answers")
}

// watchDevices begins ListAndWatch and returns its first message, or its end. The stream ends with ctx, which cancel ends.
func (s *subject) watchDevices(ctx context.Context, cancel context.CancelFunc, conn *grpc.ClientConn) (
	stream grpc.ServerStreamingClient[deviceapi.ListAndWatchResponse], first *deviceapi.ListAndWatchResponse, err error,
) {
	late := time.AfterFunc(s.options.CallTimeout, cancel)
	defer late.Stop()
	if stream, err = deviceapi.NewDevicePluginClient(conn).ListAndWatch(ctx, &deviceapi.Empty{}); err == nil {
		first, err = stream.Recv()
	}
	s.trace.addCall(deviceapi.DevicePlugin_ListAndWatch_FullMethodName, &deviceapi.Empty{}, first, err)
	if err == nil && !late.Stop() {
		err = status.Error(codes.DeadlineExceeded, "the first message came too late")
	}
	return stream, first, err
}

func checkDevices(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, first, err := s.watchDevices(ctx, cancel, conn)
	if status.Code(err) == codes.Canceled {
		return fail("no list came within %v", s.options.CallTimeout)
	}
	if err != nil {
		return fail("ListAndWatch %s", brief(err))
	}
	if wrong := checkDeviceList(first.Devices); wrong != "" {
		return fail("%s", wrong)
	}
	return pass("%d devices", len(first.Devices))
}

func checkDeviceList(devices []*deviceapi.Device) string {
	if len(devices) > maxDevices {
		return fmt.Sprintf("%d devices are listed, and hosts accept %d at most", len(devices), maxDevices)
	}
	seen := map[string]bool{}
	for _, d := range devices {
		if err := foreign.Name("the ID of a device", d.ID, maxText); err != nil {
			return err.Error()
		}
		if seen[d.ID] {
			return fmt.Sprintf("device %s is listed twice", foreign.Quote(d.ID))
		}
		seen[d.ID] = true
		if d.Health != deviceapi.Healthy && d.Health != deviceapi.Unhealthy {
			return fmt.Sprintf("device %s has the health %s, which is neither %s nor %s", foreign.Quote(d.ID), foreign.Quote(d.Health),
				deviceapi.Healthy, deviceapi.Unhealthy)
		}
	}
	return ""
}

func checkDevicesLast(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, _, err := s.watchDevices(ctx, cancel, conn)
	if err != nil {
		return notApplicable("no list came")
	}
	enough := time.AfterFunc(lasting, cancel)
	defer enough.Stop()
	for range maxTraced * 1000 {
		if _, err := stream.Recv(); err != nil {
			if !enough.Stop() {
				return pass("the stream is still open after %v", lasting)
			}
			s.trace.add("(the next message)", brief(err))
			return fail("the stream ended right after the first list")
		}
	}
	return warn("the list is sent again and again without a pause")
}

const (
	// draBeta is what drivers announce for the version before v1. Its messages are those of v1; its Go package would bring the API machinery
	// of Kubernetes into every program that verifies.
	draBeta = "v1beta1.DRAPlugin"
	// draHealth is announced by drivers that also report the health of devices.
	draHealth = "v1alpha1.DRAResourceHealth"
)

func checkPrepare(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	return s.eachDRAVersion(ctx, conn, "NodePrepareResources", &drav1.NodePrepareResourcesRequest{}, &drav1.NodePrepareResourcesResponse{})
}

func checkUnprepare(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	return s.eachDRAVersion(ctx, conn, "NodeUnprepareResources", &drav1.NodeUnprepareResourcesRequest{},
		&drav1.NodeUnprepareResourcesResponse{})
}

// eachDRAVersion makes a call without claims in each announced version. An error of the driver itself is an answer too.
func (s *subject) eachDRAVersion(ctx context.Context, conn *grpc.ClientConn, method string, request, answer proto.Message) outcome {
	var called []string
	for _, version := range []string{drav1.DRAPluginService, draBeta} {
		if !slices.Contains(s.asked.info.SupportedVersions, version) {
			continue
		}
		if err := conn.Invoke(ctx, "/k8s.io.kubelet.pkg.apis.dra."+version+"/"+method, request, answer); !answered(err) {
			return fail("%s of the announced %s %s", method, version, brief(err))
		}
		called = append(called, version)
	}
	if called == nil {
		return notApplicable("no version is announced that is known here")
	}
	return pass("answered in %s, without any claims", strings.Join(called, " and "))
}
