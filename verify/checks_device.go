package verify

import (
	"cmp"
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
	// maxLists bounds the lists that are read from one stream.
	maxLists = 4000
)

func checkDeviceOptions(ctx context.Context, _ *subject, conn *grpc.ClientConn) outcome {
	_, err := deviceapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &deviceapi.Empty{})
	requireCall("GetDevicePluginOptions", err)
	return pass("it answers")
}

// errEndless is returned by follow after maxLists lists.
var errEndless = errors.New("the list is sent again and again")

// follow calls ListAndWatch, and calls enough with each list and its number, from 1, until enough returns true or the time more since the
// first list has passed. Otherwise it returns why the stream ended. n is the number of lists.
func (s *subject) follow(ctx context.Context, conn *grpc.ClientConn, more time.Duration,
	enough func(n int, list *deviceapi.ListAndWatchResponse) bool,
) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(s.options.CallTimeout, cancel)
	defer timer.Stop()
	var list *deviceapi.ListAndWatchResponse
	stream, err := deviceapi.NewDevicePluginClient(conn).ListAndWatch(ctx, &deviceapi.Empty{})
	if err == nil {
		list, err = stream.Recv()
	}
	s.trace.addCall(deviceapi.DevicePlugin_ListAndWatch_FullMethodName, &deviceapi.Empty{}, list, err)
	if !timer.Stop() && err == nil {
		err = status.Error(codes.DeadlineExceeded, "the first message came too late")
	}
	for err == nil && n < maxLists {
		if n++; enough(n, list) {
			return n, nil
		}
		if n == 1 {
			timer.Reset(more)
		}
		if list, err = stream.Recv(); err != nil && !timer.Stop() {
			return n, nil
		}
	}
	return n, cmp.Or(err, errEndless)
}

// listed returns the devices in the first list.
func (s *subject) listed(ctx context.Context, conn *grpc.ClientConn) (devices []*deviceapi.Device, err error) {
	_, err = s.follow(ctx, conn, 0, func(_ int, list *deviceapi.ListAndWatchResponse) bool {
		devices = list.Devices
		return true
	})
	return devices, err
}

func checkDevices(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	devices, err := s.listed(ctx, conn)
	require(status.Code(err) != codes.Canceled, "no list came within %v", s.options.CallTimeout)
	requireCall("ListAndWatch", err)
	requireValid(checkDeviceList(devices))
	return pass("%d devices", len(devices))
}

func checkDeviceList(devices []*deviceapi.Device) error {
	if len(devices) > maxDevices {
		return fmt.Errorf("%d devices are listed, and hosts accept %d at most", len(devices), maxDevices)
	}
	seen := map[string]bool{}
	for _, d := range devices {
		if err := untrusted.Name("the ID of a device", d.ID, maxText); err != nil {
			return err
		}
		if seen[d.ID] {
			return fmt.Errorf("device %s is listed twice", untrusted.Quote(d.ID))
		}
		seen[d.ID] = true
		if d.Health != deviceapi.Healthy && d.Health != deviceapi.Unhealthy {
			return fmt.Errorf("device %s has the health %s, which is neither %s nor %s", untrusted.Quote(d.ID), untrusted.Quote(d.Health),
				deviceapi.Healthy, deviceapi.Unhealthy)
		}
	}
	return nil
}

// requireLater ends the check with a failure if a list after the first is wrong.
func (s *subject) requireLater(list *deviceapi.ListAndWatchResponse, which string) {
	if err := checkDeviceList(list.Devices); err != nil {
		s.trace.add("(a later message)", show(list))
		end(fail("in %s, %v", which, err))
	}
}

func checkDevicesLast(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	n, err := s.follow(ctx, conn, lasting, func(int, *deviceapi.ListAndWatchResponse) bool { return false })
	assume(n > 0, "no list came")
	expect(!errors.Is(err, errEndless), "the list is sent again and again without a pause")
	if err != nil {
		s.trace.add("(the next message)", brief(err))
		return fail("the stream ended right after the first list")
	}
	return pass("the stream is still open after %v", lasting)
}

// available returns the IDs of at most most healthy devices. It ends the check if there are none.
func (s *subject) available(ctx context.Context, conn *grpc.ClientConn, most int) []string {
	devices, _ := s.listed(ctx, conn) // none after an error
	ids := withHealth(devices, deviceapi.Healthy, most)
	assume(len(ids) > 0, "no healthy device is listed")
	return ids
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
	lost, err := s.connect(ctx)
	requireValid(err)
	defer lost.Close()
	_, err = s.follow(ctx, lost, 0, func(int, *deviceapi.ListAndWatchResponse) bool {
		_ = lost.Close() // as the kernel does for a host that died
		return true
	})
	assume(err == nil, "no list came")
	again, err := s.listed(ctx, conn)
	require(err == nil, "no list came within %v after the connection of an earlier host had broken", s.options.CallTimeout)
	return pass("%d devices", len(again))
}

func checkLaterLists(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	n, _ := s.follow(ctx, conn, lasting, func(n int, list *deviceapi.ListAndWatchResponse) bool {
		if n > 1 {
			s.requireLater(list, "a later list")
		}
		return false
	}) // another rule checks whether the stream stays open
	assume(n > 0, "no list came")
	return pass("%d more lists came within %v", n-1, lasting)
}

func checkChange(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	assume(len(s.options.Change) > 0, "name what makes the devices change, with --change")
	var before map[string]string
	changed := false
	n, err := s.follow(ctx, conn, s.options.CallTimeout, func(n int, list *deviceapi.ListAndWatchResponse) bool {
		if n == 1 {
			before = healths(list.Devices)
			s.change(ctx)
			return false
		}
		s.requireLater(list, "the list that came")
		changed = !maps.Equal(before, healths(list.Devices))
		return changed
	})
	assume(n > 0, "no list came")
	require(!errors.Is(err, errEndless), "the same list comes again and again after the devices had changed")
	require(changed, "no other list came within %v after the devices had changed", s.options.CallTimeout)
	return pass("another list came")
}

// change makes the devices change. It ends the check if that fails.
func (s *subject) change(ctx context.Context) {
	s.trace.add(strings.Join(s.options.Change, " "), "")
	change := exec.CommandContext(ctx, s.options.Change[0], s.options.Change[1:]...)
	change.WaitDelay = s.options.CallTimeout // processes that it leaves running may hold its output
	out, err := change.CombinedOutput()
	expect(err == nil || errors.Is(err, exec.ErrWaitDelay), "what makes the devices change failed, %v: %s", err, clip(string(out)))
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
	options, _ := client.GetDevicePluginOptions(ctx, &deviceapi.Empty{}) // none after an error
	assume(options.GetGetPreferredAllocationAvailable(), "the plugin offers no preferred allocation")
	offered := s.available(ctx, conn, maxOffered)
	size, must := min(2, len(offered)), offered[len(offered)-1:]
	answer, err := client.GetPreferredAllocation(ctx, &deviceapi.PreferredAllocationRequest{
		ContainerRequests: []*deviceapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: offered, MustIncludeDeviceIDs: must, AllocationSize: int32(size),
		}},
	})
	requireCall("GetPreferredAllocation", err)
	n := len(answer.ContainerResponses)
	require(n == 1, "the answer is for %d containers, and one was asked for", n)
	preferred := answer.ContainerResponses[0].GetDeviceIDs()
	outside := slices.ContainsFunc(preferred, func(id string) bool { return !slices.Contains(offered, id) })
	distinct := slices.Compact(slices.Sorted(slices.Values(preferred)))
	require(!outside && len(distinct) == len(preferred), "some of the preferred devices %s were not offered, or are there twice",
		untrusted.QuoteAll(preferred))
	expect(slices.Contains(preferred, must[0]), "the preferred devices are %s, without %s, which must be included",
		untrusted.QuoteAll(preferred), untrusted.Quote(must[0]))
	expect(len(preferred) == size, "%d devices are preferred, and %d were asked for: hosts choose the others themselves", len(preferred), size)
	return pass("preferred are %s", untrusted.QuoteAll(preferred))
}

func checkAllocate(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	ids := s.available(ctx, conn, 1)
	answer, err := allocate(ctx, conn, ids)
	expect(err == nil || !answered(err), "Allocate of the healthy device %s %s", untrusted.Quote(ids[0]), brief(err))
	requireCall("Allocate", err)
	n := len(answer.ContainerResponses)
	require(n == 1, "Allocate for one container is answered for %d", n)
	for _, d := range answer.ContainerResponses[0].GetCdiDevices() {
		require(cdiName.MatchString(d.GetName()), "the CDI device %s is not written VENDOR/CLASS=DEVICE", untrusted.Quote(d.GetName()))
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
	devices, err := s.listed(ctx, conn)
	assume(err == nil, "no list came")
	for _, id := range append(withHealth(devices, deviceapi.Unhealthy, 1), "patchbay-verify-unknown") {
		if _, err := allocate(ctx, conn, []string{id}); err != nil && !answered(err) {
			_ = s.run.Await(ctx, settle) // this rule reports an exit that the call causes
			return fail("Allocate of %s %s", untrusted.Quote(id), brief(err))
		}
	}
	require(!s.run.Await(ctx, settle), "the plugin ended after it was asked for an unavailable device")
	_, err = s.listed(ctx, conn)
	require(err == nil, "no list came within %v after it was asked for an unavailable device", s.options.CallTimeout)
	return pass("Allocate of an unavailable device is answered, and the plugin keeps serving")
}

func checkPreStart(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	client := deviceapi.NewDevicePluginClient(conn)
	options, _ := client.GetDevicePluginOptions(ctx, &deviceapi.Empty{}) // none after an error
	assume(options.GetPreStartRequired(), "the plugin wants no call before a container starts")
	ids := s.available(ctx, conn, 1)
	_, err := allocate(ctx, conn, ids)
	assume(err == nil, "Allocate does not succeed")
	_, err = client.PreStartContainer(ctx, &deviceapi.PreStartContainerRequest{DevicesIds: ids})
	requireCall("PreStartContainer", err)
	return pass("it answers")
}
