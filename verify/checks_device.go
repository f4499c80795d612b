package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	maxDevices = 10_000
	// lasting is how long a stream must stay open after its first message.
	lasting = 250 * time.Millisecond
)

func checkDeviceOptions(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	if _, err := deviceapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &deviceapi.Empty{}); err != nil {
		return fail("GetDevicePluginOptions %s", brief(err))
	}
	return pass("it answers")
}

// watchDevices calls ListAndWatch and returns the stream and its first message. cancel must cancel ctx, and so ends the stream.
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
		if err := untrusted.Name("the ID of a device", d.ID, maxText); err != nil {
			return err.Error()
		}
		if seen[d.ID] {
			return fmt.Sprintf("device %s is listed twice", untrusted.Quote(d.ID))
		}
		seen[d.ID] = true
		if d.Health != deviceapi.Healthy && d.Health != deviceapi.Unhealthy {
			return fmt.Sprintf("device %s has the health %s, which is neither %s nor %s", untrusted.Quote(d.ID), untrusted.Quote(d.Health),
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

// listed returns the devices in the first list, or an outcome if there is no list.
func (s *subject) listed(ctx context.Context, conn *grpc.ClientConn) ([]*deviceapi.Device, outcome) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, first, err := s.watchDevices(ctx, cancel, conn)
	if err != nil {
		return nil, notApplicable("no list came")
	}
	return first.Devices, outcome{}
}

// withHealth returns the IDs of at most most devices that have the health.
func withHealth(devices []*deviceapi.Device, health string, most int) []string {
	var ids []string
	for _, d := range devices {
		if d.Health == health && len(ids) < most {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// checkDevicesAgain closes a connection during ListAndWatch, as if the host had been killed.
func checkDevicesAgain(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	path, err := s.endpoint(s.asked.info)
	if err != nil {
		return notApplicable("%v", err)
	}
	lost, err := dial(path, s.options.CallTimeout, &s.trace)
	if err != nil {
		return fail("%v", err)
	}
	ending, end := context.WithCancel(ctx)
	defer end()
	_, _, err = s.watchDevices(ending, end, lost)
	_ = lost.Close() // as the kernel does for a host that died
	if err != nil {
		return notApplicable("no list came")
	}
	again, o := s.listed(ctx, conn)
	if o.status != "" {
		return fail("no list came within %v after the connection of an earlier host had broken", s.options.CallTimeout)
	}
	return pass("%d devices", len(again))
}

func checkLaterLists(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, _, err := s.watchDevices(ctx, cancel, conn)
	if err != nil {
		return notApplicable("no list came")
	}
	defer time.AfterFunc(lasting, cancel).Stop()
	n := 0
	for ; n < maxTraced*1000; n++ {
		list, err := stream.Recv()
		if err != nil {
			break // another rule checks whether the stream stays open
		}
		if wrong := checkDeviceList(list.Devices); wrong != "" {
			s.trace.add("(a later message)", show(list))
			return fail("in a later list, %s", wrong)
		}
	}
	return pass("%d more lists came within %v", n, lasting)
}

func checkChange(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	if len(s.options.Change) == 0 {
		return notApplicable("name what makes the devices change, with --change")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, first, err := s.watchDevices(ctx, cancel, conn)
	if err != nil {
		return notApplicable("no list came")
	}
	s.trace.add(strings.Join(s.options.Change, " "), "")
	change := exec.CommandContext(ctx, s.options.Change[0], s.options.Change[1:]...)
	change.WaitDelay = s.options.CallTimeout // processes that it leaves running may hold its output
	if out, err := change.CombinedOutput(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return warn("what makes the devices change failed, %v: %s", err, clip(string(out)))
	}
	defer time.AfterFunc(s.options.CallTimeout, cancel).Stop()
	for range maxTraced * 1000 {
		list, err := stream.Recv()
		if err != nil {
			return fail("no other list came within %v after the devices had changed", s.options.CallTimeout)
		}
		if wrong := checkDeviceList(list.Devices); wrong != "" {
			s.trace.add("(a later message)", show(list))
			return fail("in the list that came, %s", wrong)
		}
		if !maps.Equal(healths(first.Devices), healths(list.Devices)) {
			return pass("another list came")
		}
	}
	return fail("the same list comes again and again after the devices had changed")
}

func healths(devices []*deviceapi.Device) map[string]string {
	all := map[string]string{}
	for _, d := range devices {
		all[d.ID] = d.Health
	}
	return all
}

const maxOffered = 8

func checkPreferred(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	client := deviceapi.NewDevicePluginClient(conn)
	options, err := client.GetDevicePluginOptions(ctx, &deviceapi.Empty{})
	if err != nil || !options.GetGetPreferredAllocationAvailable() {
		return notApplicable("the plugin offers no preferred allocation")
	}
	devices, o := s.listed(ctx, conn)
	offered := withHealth(devices, deviceapi.Healthy, maxOffered)
	if o.status != "" || len(offered) == 0 {
		return notApplicable("no healthy device is listed")
	}
	size, must := min(2, len(offered)), offered[len(offered)-1:]
	answer, err := client.GetPreferredAllocation(ctx, &deviceapi.PreferredAllocationRequest{
		ContainerRequests: []*deviceapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: offered, MustIncludeDeviceIDs: must, AllocationSize: int32(size),
		}},
	})
	if err != nil {
		return fail("GetPreferredAllocation %s", brief(err))
	}
	if n := len(answer.ContainerResponses); n != 1 {
		return fail("the answer is for %d containers, and one was asked for", n)
	}
	preferred := answer.ContainerResponses[0].GetDeviceIDs()
	outside := slices.ContainsFunc(preferred, func(id string) bool { return !slices.Contains(offered, id) })
	switch distinct := slices.Compact(slices.Sorted(slices.Values(preferred))); {
	case outside || len(distinct) != len(preferred):
		return fail("some of the preferred devices %s were not offered, or are there twice", untrusted.QuoteAll(preferred))
	case !slices.Contains(preferred, must[0]):
		return warn("the preferred devices are %s, without %s, which must be included", untrusted.QuoteAll(preferred), untrusted.Quote(must[0]))
	case len(preferred) != size:
		return warn("%d devices are preferred, and %d were asked for: hosts choose the others themselves", len(preferred), size)
	}
	return pass("preferred are %s", untrusted.QuoteAll(preferred))
}

func checkAllocate(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	devices, o := s.listed(ctx, conn)
	ids := withHealth(devices, deviceapi.Healthy, 1)
	if o.status != "" || len(ids) == 0 {
		return notApplicable("no healthy device is listed")
	}
	answer, err := allocate(ctx, conn, ids)
	switch {
	case err != nil && answered(err):
		return warn("Allocate of the healthy device %s %s", untrusted.Quote(ids[0]), brief(err))
	case err != nil:
		return fail("Allocate %s", brief(err))
	case len(answer.ContainerResponses) != 1:
		return fail("Allocate for one container is answered for %d", len(answer.ContainerResponses))
	}
	for _, d := range answer.ContainerResponses[0].GetCdiDevices() {
		if !cdiName.MatchString(d.GetName()) {
			return fail("the CDI device %s is not written VENDOR/CLASS=DEVICE", untrusted.Quote(d.GetName()))
		}
	}
	return pass("device %s is allocated", untrusted.Quote(ids[0]))
}

func allocate(ctx context.Context, conn *grpc.ClientConn, ids []string) (*deviceapi.AllocateResponse, error) {
	return deviceapi.NewDevicePluginClient(conn).Allocate(ctx, &deviceapi.AllocateRequest{
		ContainerRequests: []*deviceapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
}

// checkAllocateSick allocates unavailable devices, because a device may become unhealthy or vanish just before a host allocates it.
func checkAllocateSick(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	devices, o := s.listed(ctx, conn)
	if o.status != "" {
		return o
	}
	for _, id := range append(withHealth(devices, deviceapi.Unhealthy, 1), "patchbay-verify-unknown") {
		if _, err := allocate(ctx, conn, []string{id}); err != nil && !answered(err) {
			_ = s.run.Await(ctx, settle) // this rule reports an exit that the call causes
			return fail("Allocate of %s %s", untrusted.Quote(id), brief(err))
		}
	}
	if s.run.Await(ctx, settle) {
		return fail("the plugin ended after it was asked for an unavailable device")
	}
	if _, o := s.listed(ctx, conn); o.status != "" {
		return fail("no list came within %v after it was asked for an unavailable device", s.options.CallTimeout)
	}
	return pass("Allocate of an unavailable device is answered, and the plugin keeps serving")
}

func checkPreStart(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	client := deviceapi.NewDevicePluginClient(conn)
	options, err := client.GetDevicePluginOptions(ctx, &deviceapi.Empty{})
	if err != nil || !options.GetPreStartRequired() {
		return notApplicable("the plugin wants no call before a container starts")
	}
	devices, o := s.listed(ctx, conn)
	ids := withHealth(devices, deviceapi.Healthy, 1)
	if o.status != "" || len(ids) == 0 {
		return notApplicable("no healthy device is listed")
	}
	if _, err := allocate(ctx, conn, ids); err != nil {
		return notApplicable("Allocate does not succeed")
	}
	if _, err := client.PreStartContainer(ctx, &deviceapi.PreStartContainerRequest{DevicesIds: ids}); err != nil {
		return fail("PreStartContainer %s", brief(err))
	}
	return pass("it answers")
}
