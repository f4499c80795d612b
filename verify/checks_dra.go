package verify

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/verify/internal/runner"
)

const (
	// draBeta is the service before v1. It is called with the messages of v1, because its Go package would link the API machinery of
	// Kubernetes.
	draBeta = "v1beta1.DRAPlugin"
	// draHealth is the service for the health of devices, draHealthAlpha the one before Kubernetes 1.37, with the same messages.
	draHealth      = "v1.DRAResourceHealth"
	draHealthAlpha = "v1alpha1.DRAResourceHealth"
)

// answersIn returns a check that calls a method without claims in each announced version. An error from the driver counts as an answer.
func answersIn(method string, request, answer proto.Message) func(context.Context, *subject) outcome {
	return onEndpoint(func(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
		var called []string
		for _, version := range []string{drav1.DRAPluginService, draBeta} {
			if s.announced(version) == "" {
				continue
			}
			err := conn.Invoke(ctx, "/k8s.io.kubelet.pkg.apis.dra."+version+"/"+method, request, proto.CloneOf(answer))
			require(answered(err), "%s of the announced %s %s", method, version, brief(err))
			called = append(called, version)
		}
		assume(called != nil, "no version is announced that is known here")
		return pass("answered in %s, without any claims", strings.Join(called, " and "))
	})
}

// parseClaims parses claims of the form NAMESPACE/NAME/UID.
func parseClaims(texts []string) ([]*drav1.Claim, error) {
	var claims []*drav1.Claim
	for _, text := range texts {
		parts := strings.Split(text, "/")
		if len(parts) != 3 || slices.Contains(parts, "") {
			return nil, fmt.Errorf("claim %q is not written NAMESPACE/NAME/UID", text)
		}
		claims = append(claims, &drav1.Claim{Namespace: parts[0], Name: parts[1], Uid: parts[2]})
	}
	return claims, nil
}

// cdiName matches a fully qualified device name of the Container Device Interface.
var cdiName = regexp.MustCompile(`^[A-Za-z][-_.A-Za-z0-9]*/[A-Za-z][-_.A-Za-z0-9]*=[A-Za-z0-9]([-_.:A-Za-z0-9]*[A-Za-z0-9])?$`)

// strange returns a claim that does not exist. Drivers that look it up at the API server refuse it; others prepare it, and the caller
// unprepares it.
func strange() []*drav1.Claim {
	return []*drav1.Claim{{Namespace: "default", Name: "patchbay-verify", Uid: "7a1f2a84-4f5e-4d3c-9d53-2f0d1c1c6a31"}}
}

// announced returns the first of the services that the driver announces as a version; empty if it announces none of them.
func (s *subject) announced(services ...string) string {
	i := slices.IndexFunc(services, func(service string) bool { return slices.Contains(s.asked.info.GetSupportedVersions(), service) })
	if i < 0 {
		return ""
	}
	return services[i]
}

// draService returns the service for claims that hosts call; empty if the driver announces none that is known.
func (s *subject) draService() string { return s.announced(drav1.DRAPluginService, draBeta) }

func (s *subject) invokeDRA(ctx context.Context, conn *grpc.ClientConn, method string, request, answer proto.Message) error {
	return conn.Invoke(ctx, "/k8s.io.kubelet.pkg.apis.dra."+s.draService()+"/"+method, request, answer)
}

func (s *subject) prepare(ctx context.Context, conn *grpc.ClientConn, claims []*drav1.Claim) (
	map[string]*drav1.NodePrepareResourceResponse, error,
) {
	answer := &drav1.NodePrepareResourcesResponse{}
	err := s.invokeDRA(ctx, conn, "NodePrepareResources", &drav1.NodePrepareResourcesRequest{Claims: claims}, answer)
	return answer.Claims, err
}

func (s *subject) unprepare(ctx context.Context, conn *grpc.ClientConn, claims []*drav1.Claim) (
	map[string]*drav1.NodeUnprepareResourceResponse, error,
) {
	answer := &drav1.NodeUnprepareResourcesResponse{}
	err := s.invokeDRA(ctx, conn, "NodeUnprepareResources", &drav1.NodeUnprepareResourcesRequest{Claims: claims}, answer)
	return answer.Claims, err
}

// assumeClaims ends the check as not applicable if the driver does not implement the methods for claims; other rules judge that.
func (s *subject) assumeClaims(ctx context.Context, conn *grpc.ClientConn) {
	assume(s.draService() != "", "no version is announced that is known here")
	_, err := s.prepare(ctx, conn, nil)
	_, errUnprepare := s.unprepare(ctx, conn, nil)
	assume(answered(err) && answered(errUnprepare), "claims cannot be prepared or unprepared")
}

// withClaims is onEndpoint for checks that need the claims of the options. It unprepares the claims afterwards.
func withClaims(check func(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome) func(context.Context, *subject) outcome {
	return onEndpoint(func(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
		assume(len(s.claims) > 0, "name claims that the driver can prepare, with --claim")
		s.assumeClaims(ctx, conn)
		defer func() { _, _ = s.unprepare(ctx, conn, s.claims) }() // another rule checks it
		return check(ctx, s, conn)
	})
}

// requireAnswers ends the check with a failure unless the answer of a method has one entry for each claim and no others, or the method
// itself returned an error.
func requireAnswers[T any](method string, claims []*drav1.Claim, answer map[string]T, err error) {
	require(answered(err), "%s %s", method, brief(err))
	if err != nil {
		return
	}
	for uid := range answer {
		require(slices.ContainsFunc(claims, func(c *drav1.Claim) bool { return c.Uid == uid }),
			"after %s, the answer is about a claim that was not asked for, with the UID %s", method, untrusted.Quote(uid))
	}
	err = leftOut(claims, answer)
	require(err == nil, "after %s, %v", method, err)
}

// leftOut returns an error if a claim has no entry in the answer.
func leftOut[T any](claims []*drav1.Claim, answer map[string]T) error {
	for _, c := range claims {
		if _, found := answer[c.Uid]; !found {
			return fmt.Errorf("the answer says nothing of claim %s/%s with the UID %s", c.Namespace, c.Name, c.Uid)
		}
	}
	return nil
}

func checkByClaim(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	s.assumeClaims(ctx, conn)
	var asked [][]*drav1.Claim
	if len(s.claims) > 0 {
		asked = append(asked, s.claims)
	}
	if s.runner != nil { // a driver that this process did not start gets no strange claims
		asked = append(asked, strange())
	}
	assume(asked != nil, "name claims that the driver can prepare, with --claim, or verify a command")
	for _, claims := range asked {
		prepared, err := s.prepare(ctx, conn, claims)
		requireAnswers("NodePrepareResources", claims, prepared, err)
		undone, err := s.unprepare(ctx, conn, claims)
		requireAnswers("NodeUnprepareResources", claims, undone, err)
	}
	return pass("each claim is answered")
}

// devicesOf prepares the claims and returns the answer for each, by UID.
func (s *subject) devicesOf(ctx context.Context, conn *grpc.ClientConn) (map[string]*drav1.NodePrepareResourceResponse, error) {
	prepared, err := s.prepare(ctx, conn, s.claims)
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources %s", brief(err))
	}
	return prepared, leftOut(s.claims, prepared)
}

// prepared is devicesOf for checks of what follows: it ends the check as not applicable if the claims cannot be prepared.
func (s *subject) prepared(ctx context.Context, conn *grpc.ClientConn) map[string]*drav1.NodePrepareResourceResponse {
	prepared, err := s.devicesOf(ctx, conn)
	assume(err == nil, "%v", err)
	return prepared
}

// sameDevices returns an error if a claim got other devices than before.
func sameDevices(before, after map[string]*drav1.NodePrepareResourceResponse) error {
	for uid, first := range before {
		again := after[uid]
		if (first.GetError() == "") != (again.GetError() == "") ||
			!slices.EqualFunc(first.GetDevices(), again.GetDevices(), func(a, b *drav1.Device) bool { return proto.Equal(a, b) }) {
			return fmt.Errorf("the claim with the UID %s got %s, and then %s", untrusted.Quote(uid), show(first), show(again))
		}
	}
	return nil
}

func checkPrepareAgain(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	first, err := s.devicesOf(ctx, conn)
	requireValid(err)
	again, err := s.devicesOf(ctx, conn)
	require(err == nil, "the second time, %v", err)
	requireValid(sameDevices(first, again))
	return pass("%d claims got the same twice", len(s.claims))
}

func checkPreparedDevices(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	n := 0
	for uid, claim := range s.prepared(ctx, conn) {
		for _, d := range claim.GetDevices() {
			n++
			require(d.GetPoolName() != "" && d.GetDeviceName() != "", "a device for the claim with the UID %s lacks its pool or its name: %s",
				untrusted.Quote(uid), show(d))
			for _, id := range d.GetCdiDeviceIds() {
				require(cdiName.MatchString(id), "the CDI device ID %s is not written VENDOR/CLASS=DEVICE", untrusted.Quote(id))
			}
		}
	}
	return pass("%d devices are named in full", n)
}

func checkUnprepareAgain(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	s.prepared(ctx, conn)
	for _, time := range []string{"first", "second"} {
		err := s.undo(ctx, conn)
		require(err == nil, "the %s time, %v", time, err)
	}
	return pass("%d claims were unprepared twice", len(s.claims))
}

func (s *subject) undo(ctx context.Context, conn *grpc.ClientConn) error {
	undone, err := s.unprepare(ctx, conn, s.claims)
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources %s", brief(err))
	}
	for uid, claim := range undone {
		if claim.GetError() != "" {
			return fmt.Errorf("the claim with the UID %s is not unprepared: %s", untrusted.Quote(uid), untrusted.Quote(clip(claim.GetError())))
		}
	}
	return leftOut(s.claims, undone)
}

// checkErrorsByClaim needs a claim that can be prepared and one that cannot.
func checkErrorsByClaim(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	var good, bad []*drav1.Claim
	for _, claim := range s.claims {
		prepared, err := s.prepare(ctx, conn, []*drav1.Claim{claim})
		if err == nil && prepared[claim.Uid] != nil && prepared[claim.Uid].GetError() == "" {
			good = append(good, claim)
		} else {
			bad = append(bad, claim)
		}
	}
	assume(len(good) > 0 && len(bad) > 0, "name a claim that the driver can prepare, and one that it cannot, with --claim")
	prepared, err := s.devicesOf(ctx, conn)
	require(err == nil, "with a claim among them that cannot be prepared, %v", err)
	for _, claim := range good {
		text := prepared[claim.Uid].GetError()
		require(text == "", "claim %s/%s is prepared alone, and beside one that cannot be it is not: %s", claim.Namespace, claim.Name,
			untrusted.Quote(clip(text)))
	}
	for _, claim := range bad {
		require(prepared[claim.Uid].GetError() != "", "claim %s/%s is not prepared alone, and beside others it is", claim.Namespace, claim.Name)
	}
	return pass("%d claims are prepared although %d are not", len(good), len(bad))
}

// restart stops the plugin with SIGTERM, or SIGKILL if that fails, and starts it again.
func (s *subject) restart(ctx context.Context) (*runner.Appearance, error) {
	run := s.run
	s.run = nil
	s.trace.add("SIGTERM, and start again", "")
	s.end(ctx, run)
	again, a, err := s.runner.StartAfter(ctx, run)
	if err != nil {
		return nil, err
	}
	s.take(again, a)
	return a, nil
}

// take makes another instance the one that is verified; it may announce another endpoint.
func (s *subject) take(next *runner.Instance, a *runner.Appearance) {
	s.run, s.path, s.asked = next, a.Path, nil
}

// end stops an instance with SIGTERM, or SIGKILL if that fails. Another rule judges how it exits.
func (s *subject) end(ctx context.Context, run *runner.Instance) {
	run.Settle(ctx, settled)
	if run.Signal(syscall.SIGTERM) != nil || !run.AwaitAll(ctx, s.options.ExitTimeout) {
		_ = run.Kill()
	}
}

func checkRestartBetween(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	first := s.prepared(ctx, conn)
	_, err := s.restart(ctx)
	require(err == nil, "the driver did not start again: %s", text(err))
	err = s.sameAgain(ctx, first)
	require(err == nil, "after the driver was started again, %v", err)
	return pass("%d claims got the same after the driver was started again, and are unprepared", len(s.claims))
}

// sameAgain prepares the claims at the endpoint of an instance that did not prepare them before, and unprepares them there.
func (s *subject) sameAgain(ctx context.Context, first map[string]*drav1.NodePrepareResourceResponse) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	again, err := s.devicesOf(ctx, conn)
	if err == nil {
		err = sameDevices(first, again)
	}
	if err == nil {
		err = s.undo(ctx, conn)
	}
	return err
}

// checkRollOver runs two instances at the same time, as a rolling update does, and stops the older one.
func checkRollOver(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	assume(s.runner.HasInstanceNumber(), "instances that run side by side would not differ; use %s in the command", runner.PlaceInstance)
	first, path, prepared := s.run, s.path, s.prepared(ctx, conn)
	s.trace.add("start a second instance", "")
	second, a, err := s.runner.StartBeside(ctx, first)
	require(err == nil, "the second instance did not serve beside the first: %s", text(err))
	if a.Path == path {
		s.run = second
		s.end(ctx, first)
		return fail("both instances make the socket %s; a host keeps the older one until the newer is registered, so they need two", path)
	}
	_, err = s.getInfo(ctx)
	s.take(second, a)
	if err != nil {
		s.end(ctx, first)
		return fail("while the second instance serves, GetInfo of the first %s", brief(err))
	}
	s.trace.add("SIGTERM to the first instance", "")
	s.end(ctx, first)
	runner.Pause(ctx, settle, nil) // its files may be removed after its exit
	_, err = sock.Stat(a.Path)
	require(err == nil, "the end of the first instance removed the socket of the second, %s", a.Path)
	err = s.sameAgain(ctx, prepared)
	require(err == nil, "at the second instance, %v", err)
	return pass("the second instance serves at %s beside the first and after its end", a.Path)
}

func checkDeviceHealth(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	service := s.announced(draHealth, draHealthAlpha)
	assume(service != "", "the driver announces neither %s nor %s", draHealth, draHealthAlpha)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw, err := conn.NewStream(ctx, &drahealth.DRAResourceHealth_ServiceDesc.Streams[0], "/"+service+"/NodeWatchResources")
	if err == nil {
		err = errors.Join(raw.SendMsg(&drahealth.NodeWatchResourcesRequest{}), raw.CloseSend())
	}
	requireCall("NodeWatchResources", err)
	stream := grpc.GenericClientStream[drahealth.NodeWatchResourcesRequest, drahealth.NodeWatchResourcesResponse]{ClientStream: raw}
	enough := time.AfterFunc(max(lasting, settle), cancel)
	defer enough.Stop()
	for n := range maxLists {
		list, err := stream.Recv()
		if err != nil && !enough.Stop() {
			return pass("%d lists came, and the stream is still open", n)
		}
		s.trace.add("(a message of NodeWatchResources)", show(list))
		requireCall("NodeWatchResources", err)
		for _, d := range list.GetDevices() {
			require(d.GetDevice().GetPoolName() != "" && d.GetDevice().GetDeviceName() != "", "a device lacks its pool or its name: %s", show(d))
			_, known := drahealth.HealthStatus_name[int32(d.GetHealth())]
			require(known, "a device has the health %d, which does not exist", d.GetHealth())
		}
	}
	return warn("the health is sent again and again without a pause")
}
