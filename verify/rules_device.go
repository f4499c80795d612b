package verify

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

const (
	maxDevices = 10_000
	// lasting is how long a stream that is to last is looked at after its first message.
	lasting = 250 * time.Millisecond
)

func deviceVersions() []string { return deviceapi.SupportedVersions[:] }

func deviceRules() []Rule {
	rules := []Rule{
		{
			ID: "DEV001", Title: "GetDevicePluginOptions answers",
			Why:    "It is the first call of the kubelet; a plugin that fails it gets no devices assigned.",
			Remedy: "implement DevicePlugin.GetDevicePluginOptions on the endpoint; an empty answer is allowed",
			check:  checkDeviceOptions,
		},
		{
			ID: "DEV002", Title: "ListAndWatch lists the devices at once",
			Why:    "The node has no devices of the resource until the first list; a device without an ID or with one twice cannot be assigned.",
			Remedy: "send the whole list when the stream begins, each device with an ID of its own and health Healthy or Unhealthy",
			check:  checkDevices,
		},
		{
			ID: "DEV003", Title: "ListAndWatch lasts",
			Why:    "The end of the stream is the end of the plugin for the kubelet: it takes all devices away.",
			Remedy: "return from ListAndWatch only when its context ends or the plugin stops",
			check:  checkDevicesLast,
		},
	}
	for i := range rules {
		rules[i].Type = registerapi.DevicePlugin
	}
	return rules
}

func checkDeviceOptions(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		if _, err := deviceapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &deviceapi.Empty{}); err != nil {
			return fail("GetDevicePluginOptions %s", brief(err))
		}
		return pass("it answers")
	})
}

// watchDevices begins ListAndWatch and hands its first message to fn, or its end.
func (s *subject) watchDevices(ctx context.Context, conn *grpc.ClientConn,
	fn func(stream grpc.ServerStreamingClient[deviceapi.ListAndWatchResponse], first *deviceapi.ListAndWatchResponse, err error) outcome,
) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(s.options.CallTimeout, cancel)
	defer late.Stop()
	stream, err := deviceapi.NewDevicePluginClient(conn).ListAndWatch(ctx, &deviceapi.Empty{})
	var first *deviceapi.ListAndWatchResponse
	if err == nil {
		first, err = stream.Recv()
	}
	s.trace.addCall(deviceapi.DevicePlugin_ListAndWatch_FullMethodName, &deviceapi.Empty{}, first, err)
	if err == nil && !late.Stop() {
		err = status.Error(codes.DeadlineExceeded, "the first message came too late")
	}
	return fn(stream, first, err)
}

func checkDevices(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		return s.watchDevices(ctx, conn,
			func(_ grpc.ServerStreamingClient[deviceapi.ListAndWatchResponse], first *deviceapi.ListAndWatchResponse, err error) outcome {
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
			})
	})
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

func checkDevicesLast(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return s.watchDevices(ctx, conn,
			func(stream grpc.ServerStreamingClient[deviceapi.ListAndWatchResponse], _ *deviceapi.ListAndWatchResponse, err error) outcome {
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
			})
	})
}
