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

func checkPrepare(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	return s.eachDRAVersion(ctx, conn, "NodePrepareResources", &drav1.NodePrepareResourcesRequest{}, &drav1.NodePrepareResourcesResponse{})
}

func checkUnprepare(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	return s.eachDRAVersion(ctx, conn, "NodeUnprepareResources", &drav1.NodeUnprepareResourcesRequest{},
		&drav1.NodeUnprepareResourcesResponse{})
}

// eachDRAVersion calls a method without claims in each announced version. An error from the driver counts as an answer.
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

// callsClaims returns a not-applicable outcome if the driver does not implement the methods for claims; other rules judge that.
func (s *subject) callsClaims(ctx context.Context, conn *grpc.ClientConn) outcome {
	if s.draService() == "" {
		return notApplicable("no version is announced that is known here")
	}
	_, err := s.prepare(ctx, conn, nil)
	_, errUnprepare := s.unprepare(ctx, conn, nil)
	if !answered(err) || !answered(errUnprepare) {
		return notApplicable("claims cannot be prepared or unprepared")
	}
	return outcome{}
}

// withClaims is onEndpoint for checks that need the claims of the options. It unprepares the claims afterwards.
func withClaims(check func(ctx context.Context, s *subject, conn *grpc.ClientConn, claims []*drav1.Claim) outcome) func(
	context.Context, *subject) outcome {
	return onEndpoint(func(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
		claims := s.claims
		if len(claims) == 0 {
			return notApplicable("name claims that the driver can prepare, with --claim")
		}
		if o := s.callsClaims(ctx, conn); o.status != "" {
			return o
		}
		defer func() { _, _ = s.unprepare(ctx, conn, claims) }() // another rule checks it
		return check(ctx, s, conn, claims)
	})
}

// answeredFor returns a problem unless the answer has one entry for each claim and no others.
func answeredFor[T any](claims []*drav1.Claim, answer map[string]T) string {
	for uid := range answer {
		if !slices.ContainsFunc(claims, func(c *drav1.Claim) bool { return c.Uid == uid }) {
			return "the answer is about a claim that was not asked for, with the UID " + untrusted.Quote(uid)
		}
	}
	return leftOut(claims, answer)
}

// leftOut returns a problem if a claim has no entry in the answer.
func leftOut[T any](claims []*drav1.Claim, answer map[string]T) string {
	for _, c := range claims {
		if _, found := answer[c.Uid]; !found {
			return fmt.Sprintf("the answer says nothing of claim %s/%s with the UID %s", c.Namespace, c.Name, c.Uid)
		}
	}
	return ""
}

func checkByClaim(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	if o := s.callsClaims(ctx, conn); o.status != "" {
		return o
	}
	var asked [][]*drav1.Claim
	if len(s.claims) > 0 {
		asked = append(asked, s.claims)
	}
	if s.runner != nil { // a driver that this process did not start gets no strange claims
		asked = append(asked, strange())
	}
	if asked == nil {
		return notApplicable("name claims that the driver can prepare, with --claim, or verify a command")
	}
	for _, claims := range asked {
		prepared, err := s.prepare(ctx, conn, claims)
		if err == nil {
			if wrong := answeredFor(claims, prepared); wrong != "" {
				return fail("after NodePrepareResources, %s", wrong)
			}
		} else if !answered(err) {
			return fail("NodePrepareResources %s", brief(err))
		}
		switch undone, err := s.unprepare(ctx, conn, claims); {
		case err == nil:
			if wrong := answeredFor(claims, undone); wrong != "" {
				return fail("after NodeUnprepareResources, %s", wrong)
			}
		case !answered(err):
			return fail("NodeUnprepareResources %s", brief(err))
		}
	}
	return pass("each claim is answered")
}

// devicesOf prepares the claims and returns the answer for each, by UID.
func (s *subject) devicesOf(ctx context.Context, conn *grpc.ClientConn, claims []*drav1.Claim) (
	map[string]*drav1.NodePrepareResourceResponse, error,
) {
	prepared, err := s.prepare(ctx, conn, claims)
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources %s", brief(err))
	}
	if wrong := leftOut(claims, prepared); wrong != "" {
		return nil, errors.New(wrong)
	}
	return prepared, nil
}

// sameDevices returns a problem if a claim got other devices than before.
func sameDevices(before, after map[string]*drav1.NodePrepareResourceResponse) string {
	for uid, first := range before {
		again := after[uid]
		if (first.GetError() == "") != (again.GetError() == "") ||
			!slices.EqualFunc(first.GetDevices(), again.GetDevices(), func(a, b *drav1.Device) bool { return proto.Equal(a, b) }) {
			return fmt.Sprintf("the claim with the UID %s got %s, and then %s", untrusted.Quote(uid), show(first), show(again))
		}
	}
	return ""
}

func checkPrepareAgain(ctx context.Context, s *subject, conn *grpc.ClientConn, claims []*drav1.Claim) outcome {
	first, err := s.devicesOf(ctx, conn, claims)
	if err != nil {
		return fail("%v", err)
	}
	again, err := s.devicesOf(ctx, conn, claims)
	if err != nil {
		return fail("the second time, %v", err)
	}
	if wrong := sameDevices(first, again); wrong != "" {
		return fail("%s", wrong)
	}
	return pass("%d claims got the same twice", len(claims))
}

func checkPreparedDevices(ctx context.Context, s *subject, conn *grpc.ClientConn, claims []*drav1.Claim) outcome {
	prepared, err := s.devicesOf(ctx, conn, claims)
	if err != nil {
		return notApplicable("%v", err)
	}
	n := 0
	for uid, claim := range prepared {
		for _, d := range claim.GetDevices() {
			n++
			if d.GetPoolName() == "" || d.GetDeviceName() == "" {
				return fail("a device for the claim with the UID %s lacks its pool or its name: %s", untrusted.Quote(uid), show(d))
			}
			for _, id := range d.GetCdiDeviceIds() {
				if !cdiName.MatchString(id) {
					return fail("the CDI device ID %s is not written VENDOR/CLASS=DEVICE", untrusted.Quote(id))
				}
			}
		}
	}
	return pass("%d devices are named in full", n)
}

func checkUnprepareAgain(ctx context.Context, s *subject, conn *grpc.ClientConn, claims []*drav1.Claim) outcome {
	if _, err := s.devicesOf(ctx, conn, claims); err != nil {
		return notApplicable("%v", err)
	}
	for _, time := range []string{"first", "second"} {
		if err := s.undo(ctx, conn, claims); err != nil {
			return fail("the %s time, %v", time, err)
		}
	}
	return pass("%d claims were unprepared twice", len(claims))
}

func (s *subject) undo(ctx context.Context, conn *grpc.ClientConn, claims []*drav1.Claim) error {
	undone, err := s.unprepare(ctx, conn, claims)
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources %s", brief(err))
	}
	if wrong := leftOut(claims, undone); wrong != "" {
		return errors.New(wrong)
	}
	for uid, claim := range undone {
		if claim.GetError() != "" {
			return fmt.Errorf("the claim with the UID %s is not unprepared: %s", untrusted.Quote(uid), untrusted.Quote(clip(claim.GetError())))
		}
	}
	return nil
}

// checkErrorsByClaim needs a claim that can be prepared and one that cannot.
func checkErrorsByClaim(ctx context.Context, s *subject, conn *grpc.ClientConn, claims []*drav1.Claim) outcome {
	var good, bad []*drav1.Claim
	for _, claim := range claims {
		prepared, err := s.prepare(ctx, conn, []*drav1.Claim{claim})
		if err == nil && prepared[claim.Uid] != nil && prepared[claim.Uid].GetError() == "" {
			good = append(good, claim)
		} else {
			bad = append(bad, claim)
		}
	}
	if len(good) == 0 || len(bad) == 0 {
		return notApplicable("name a claim that the driver can prepare, and one that it cannot, with --claim")
	}
	prepared, err := s.devicesOf(ctx, conn, claims)
	if err != nil {
		return fail("with a claim among them that cannot be prepared, %v", err)
	}
	for _, claim := range good {
		if text := prepared[claim.Uid].GetError(); text != "" {
			return fail("claim %s/%s is prepared alone, and beside one that cannot be it is not: %s", claim.Namespace, claim.Name,
				untrusted.Quote(clip(text)))
		}
	}
	for _, claim := range bad {
		if prepared[claim.Uid].GetError() == "" {
			return fail("claim %s/%s is not prepared alone, and beside others it is", claim.Namespace, claim.Name)
		}
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

func checkRestartBetween(ctx context.Context, s *subject, conn *grpc.ClientConn, claims []*drav1.Claim) outcome {
	first, err := s.devicesOf(ctx, conn, claims)
	if err != nil {
		return notApplicable("%v", err)
	}
	if _, err := s.restart(ctx); err != nil {
		return fail("the driver did not start again: %s", clip(err.Error()))
	}
	return s.atEndpoint(ctx, func(conn *grpc.ClientConn) outcome {
		if wrong := s.sameAgain(ctx, conn, claims, first); wrong != "" {
			return fail("after the driver was started again, %s", wrong)
		}
		return pass("%d claims got the same after the driver was started again, and are unprepared", len(claims))
	})
}

// sameAgain prepares claims at an instance that did not prepare them before, unprepares them, and returns what went wrong.
func (s *subject) sameAgain(ctx context.Context, conn *grpc.ClientConn, claims []*drav1.Claim,
	first map[string]*drav1.NodePrepareResourceResponse,
) string {
	again, err := s.devicesOf(ctx, conn, claims)
	if err != nil {
		return err.Error()
	}
	if wrong := sameDevices(first, again); wrong != "" {
		return wrong
	}
	if err := s.undo(ctx, conn, claims); err != nil {
		return err.Error()
	}
	return ""
}

// atEndpoint calls check with a connection to the endpoint that the running instance announces.
func (s *subject) atEndpoint(ctx context.Context, check func(conn *grpc.ClientConn) outcome) outcome {
	info, o := s.info(ctx)
	if info == nil {
		return o
	}
	path, err := s.endpoint(info)
	if err != nil {
		return fail("%v", err)
	}
	conn, err := dial(path, s.options.CallTimeout, &s.trace)
	if err != nil {
		return fail("%v", err)
	}
	defer conn.Close()
	return check(conn)
}

// checkRollOver runs two instances at the same time, as a rolling update does, and stops the older one.
func checkRollOver(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	if !s.runner.HasInstanceNumber() {
		return notApplicable("instances that run side by side would not differ; use %s in the command", runner.PlaceInstance)
	}
	claims, first, path := s.claims, s.run, s.path
	prepared, err := s.devicesOf(ctx, conn, claims)
	if err != nil {
		return notApplicable("%v", err)
	}
	s.trace.add("start a second instance", "")
	second, a, err := s.runner.StartBeside(ctx, first)
	switch {
	case err != nil:
		return fail("the second instance did not serve beside the first: %s", clip(err.Error()))
	case a.Path == path:
		s.run = second
		s.end(ctx, first)
		return fail("both instances make the socket %s; a host keeps the older one until the newer is registered, so they need two", path)
	}
	if _, err := s.getInfo(ctx); err != nil {
		s.take(second, a)
		s.end(ctx, first)
		return fail("while the second instance serves, GetInfo of the first %s", clip(brief(err)))
	}
	s.take(second, a)
	s.trace.add("SIGTERM to the first instance", "")
	s.end(ctx, first)
	runner.Pause(ctx, settle, nil) // its files may be removed after its exit
	if _, err := sock.Stat(a.Path); err != nil {
		return fail("the end of the first instance removed the socket of the second, %s", a.Path)
	}
	return s.atEndpoint(ctx, func(conn *grpc.ClientConn) outcome {
		if wrong := s.sameAgain(ctx, conn, claims, prepared); wrong != "" {
			return fail("at the second instance, %s", wrong)
		}
		return pass("the second instance serves at %s beside the first and after its end", a.Path)
	})
}

func checkDeviceHealth(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	service := s.announced(draHealth, draHealthAlpha)
	if service == "" {
		return notApplicable("the driver announces neither %s nor %s", draHealth, draHealthAlpha)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw, err := conn.NewStream(ctx, &drahealth.DRAResourceHealth_ServiceDesc.Streams[0], "/"+service+"/NodeWatchResources")
	if err == nil {
		err = errors.Join(raw.SendMsg(&drahealth.NodeWatchResourcesRequest{}), raw.CloseSend())
	}
	if err != nil {
		return fail("NodeWatchResources %s", brief(err))
	}
	stream := grpc.GenericClientStream[drahealth.NodeWatchResourcesRequest, drahealth.NodeWatchResourcesResponse]{ClientStream: raw}
	enough := time.AfterFunc(max(lasting, settle), cancel)
	defer enough.Stop()
	for n := range maxTraced * 1000 {
		list, err := stream.Recv()
		if err != nil && !enough.Stop() {
			return pass("%d lists came, and the stream is still open", n)
		}
		s.trace.add("(a message of NodeWatchResources)", show(list))
		if err != nil {
			return fail("NodeWatchResources %s", brief(err))
		}
		for _, d := range list.GetDevices() {
			if d.GetDevice().GetPoolName() == "" || d.GetDevice().GetDeviceName() == "" {
				return fail("a device lacks its pool or its name: %s", show(d))
			}
			if _, known := drahealth.HealthStatus_name[int32(d.GetHealth())]; !known {
				return fail("a device has the health %d, which does not exist", d.GetHealth())
			}
		}
	}
	return warn("the health is sent again and again without a pause")
}
