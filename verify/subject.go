package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"

	"google.golang.org/grpc"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// subject is the plugin that is verified and the state of the verification. It is not safe for concurrent use.
type subject struct {
	target  Target
	options Options
	claims  []*drav1.Claim // of the options
	runner  *runner.Runner // nil without a command

	path string           // the registration socket; empty until one is known
	run  *runner.Instance // the running instance; nil if none runs

	trace trace // of the rule that is being checked

	appeared *runner.Appearance // of the first start
	lost     string             // why the plugin cannot be verified any more
	reported bool               // a rule has failed because the plugin cannot be called; later ones do not apply
	startErr error              // why the first start failed
	asked    *answer            // the result of GetInfo
	vendor   string             // the vendor_version of a CSI driver
	ended    *farewell          // how the plugin behaves on SIGTERM
}

type answer struct {
	info  *registerapi.PluginInfo
	err   error
	after time.Duration
}

func (s *subject) describe(r *Report) {
	r.Socket, r.VendorVersion = s.path, clip(s.vendor)
	if s.asked != nil && s.asked.err == nil {
		info := s.asked.info
		r.Type, r.Name, r.Endpoint = clip(info.Type), clip(info.Name), clip(info.Endpoint)
		for _, v := range info.SupportedVersions[:min(len(info.SupportedVersions), maxVersions)] {
			r.Versions = append(r.Versions, clip(v))
		}
	}
}

func (s *subject) apply(ctx context.Context, rule Rule) Result {
	began := time.Now()
	s.trace.reset()
	waited := s.waiting()
	o := busy(s.check(ctx, rule), waited)
	result := Result{Rule: rule.ID, Title: rule.Title, Status: o.status, Reason: o.reason, Seconds: time.Since(began).Seconds()}
	if o.status != Passed && o.status != NotApplicable {
		result.Sent, result.Received = s.trace.texts()
		result.Remedy = cmp.Or(o.remedy, rule.Remedy)
	}
	if o.status == Inconclusive {
		result.Remedy = busyRemedy + "; if it fails then too: " + result.Remedy
	}
	return result
}

// inTime polls until the plugin is ready or StartTimeout has passed, and reports whether it is ready: a plugin may serve before that, and
// does not notify anyone when it is ready.
func (s *subject) inTime(ctx context.Context, ready func() bool) bool {
	for deadline := time.Now().Add(s.options.StartTimeout); !ready(); runner.Pause(ctx, 100*time.Millisecond, nil) {
		if ctx.Err() != nil || !time.Now().Before(deadline) {
			return false
		}
	}
	return true
}

// starved is how long a plugin's processes may wait for a processor before a failure is inconclusive: most time limits of rules are not
// much longer.
const starved = 2 * time.Second

// busy makes a failure inconclusive if the plugin's processes or this one waited too long for a processor during the check.
func busy(o outcome, waited func() time.Duration) outcome {
	if o.status != Failed {
		return o
	}
	if d := waited(); d >= starved {
		o.status = Inconclusive
		o.reason += fmt.Sprintf("; there was no processor for its processes, or for this one, for %v meanwhile", d.Round(time.Second))
	}
	return o
}

const busyRemedy = "verify again when the machine is less busy"

// waiting returns a function that returns how long the processes have waited for a processor since. It is never negative, although the
// kernel forgets the waiting time of a thread that ends.
func (s *subject) waiting() func() time.Duration {
	before := s.waited()
	return func() time.Duration { return max(s.waited()-before, 0) }
}

// waited returns how long the started processes and this one have waited for a processor. For this process it is the sum over the threads
// divided by GOMAXPROCS, because its threads often wait at the same time.
func (s *subject) waited() (sum time.Duration) {
	sum = runner.WaitedFor(os.Getpid()) / time.Duration(runtime.GOMAXPROCS(0))
	if s.runner == nil {
		return sum
	}
	for _, i := range s.runner.Instances {
		sum += i.Waited()
	}
	return sum
}

func (s *subject) check(ctx context.Context, rule Rule) outcome {
	return outcomeOf(func() outcome {
		assume(!rule.Command || s.runner != nil, "it would start, refuse or end the plugin; verify a command for it")
		s.requireTime(ctx)
		s.assumeFit(rule)
		if rule.family() != "PRC" && rule.family() != "ENV" {
			s.ready(ctx)
		}
		if rule.Type != "" {
			announced := s.info(ctx).Type
			assume(announced == rule.Type, "the plugin is of type %s, the rule is for %s", untrusted.Quote(announced), rule.Type)
		}
		o := outcomeOf(func() outcome { return rule.check(ctx, s) })
		if o.status != Passed {
			s.requireTime(ctx)
		}
		s.requireAlive(ctx, rule)
		return o
	})
}

// recover waits until an overloaded plugin answers again, for at most settle, so that a failure of one rule does not fail the next one.
func (s *subject) recover(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for {
		if _, err := s.query(ctx, nil); err == nil || ctx.Err() != nil {
			return
		}
		runner.Pause(ctx, 10*time.Millisecond, nil) // there is no notification
	}
}

// requireTime ends the check with a failure when the time for the verification is up.
func (s *subject) requireTime(ctx context.Context) {
	// Compare the deadline, because a call may see it before the timer of ctx fires.
	if deadline, ok := ctx.Deadline(); ctx.Err() == nil && (!ok || time.Now().Before(deadline)) {
		return
	}
	o := fail("the time for the verification, %v, was up before it was checked", s.options.Timeout)
	o.remedy = "allow more time, or see which rule before it took so long"
	end(o)
}

// ready starts the plugin if necessary.
func (s *subject) ready(ctx context.Context) {
	s.requirePlugin(s.lost == "", "%s", s.lost)
	if s.runner != nil && s.run == nil {
		err := s.start(ctx)
		s.requirePlugin(err == nil, "the plugin did not start: %s", text(err))
	}
}

// requirePlugin is require for what makes it impossible to call the plugin: the first such check fails, and later ones do not apply.
func (s *subject) requirePlugin(ok bool, format string, args ...any) {
	if !ok {
		assume(!s.reported, "the plugin cannot be asked: an earlier rule says why")
		s.reported = true
		end(fail(format, args...))
	}
}

// start starts the plugin. After an error, later calls return the same error.
func (s *subject) start(ctx context.Context) error {
	if s.startErr != nil {
		return s.startErr
	}
	run, a, err := s.runner.Start(ctx)
	if s.appeared == nil {
		s.appeared = a
	}
	if err != nil {
		s.startErr = err
		return err
	}
	s.run, s.path = run, a.Path
	if a.Request != nil && s.asked == nil {
		s.asked = &answer{after: a.After, info: &registerapi.PluginInfo{
			Type: registerapi.DevicePlugin, Name: a.Request.ResourceName, Endpoint: a.Path, SupportedVersions: []string{a.Request.Version},
		}}
	}
	return nil
}

// requireAlive ends the check with a failure if the plugin exited during a check that should not have ended it.
func (s *subject) requireAlive(ctx context.Context, rule Rule) {
	switch {
	case s.runner != nil:
		if s.run != nil && s.run.HasEnded() {
			how := s.run.End()
			_ = s.run.Kill() // its driver may still run
			s.run = nil
			end(fail("the plugin ended while the rule was checked: %s", how))
		}
	case s.lost == "" && s.asked != nil && s.asked.err == nil: // otherwise it was never there; the rules say so
		if _, err := sock.Probe(ctx, s.path); sock.IsGone(err) || sock.IsRefused(err) {
			s.lose("nobody accepts on the socket any more since " + rule.ID + " was checked")
			end(fail("nobody accepts on the socket any more: the plugin ended while the rule was checked"))
		}
	}
}

// info returns what the plugin announces.
func (s *subject) info(ctx context.Context) *registerapi.PluginInfo {
	a := s.ask(ctx)
	s.requirePlugin(a.err == nil, "the plugin does not say what it is: GetInfo %s", brief(a.err))
	return a.info
}

func (s *subject) ask(ctx context.Context) *answer {
	if s.asked == nil {
		s.asked = &answer{}
		began := time.Now()
		s.asked.info, s.asked.err = s.getInfo(ctx)
		s.asked.after = time.Since(began)
	}
	return s.asked
}

// getInfo calls GetInfo on a new connection, or GetDevicePluginOptions if the plugin registers on kubelet.sock.
func (s *subject) getInfo(ctx context.Context) (*registerapi.PluginInfo, error) {
	return s.query(ctx, &s.trace)
}

func (s *subject) query(ctx context.Context, t *trace) (*registerapi.PluginInfo, error) {
	conn, err := dial(s.path, s.options.CallTimeout, t)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return s.queryOn(ctx, conn)
}

func (s *subject) queryOn(ctx context.Context, conn *grpc.ClientConn) (*registerapi.PluginInfo, error) {
	if s.registersItself() {
		_, err := deviceapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &deviceapi.Empty{})
		return s.asked.info, err
	}
	return registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
}

func (s *subject) question() string {
	if s.registersItself() {
		return deviceapi.DevicePlugin_GetDevicePluginOptions_FullMethodName
	}
	return registerapi.Registration_GetInfo_FullMethodName
}

func (s *subject) notify(ctx context.Context, registered bool, reason string) error {
	conn, err := dial(s.path, s.options.CallTimeout, &s.trace)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = registerapi.NewRegistrationClient(conn).NotifyRegistrationStatus(ctx,
		&registerapi.RegistrationStatus{PluginRegistered: registered, Error: reason})
	return err
}

func (s *subject) endpoint(info *registerapi.PluginInfo) (string, error) {
	switch {
	case info.Endpoint == "":
		return s.path, nil
	case len(info.Endpoint) > maxText:
		return "", fmt.Errorf("the endpoint has %d bytes, and hosts accept %d at most", len(info.Endpoint), maxText)
	case !filepath.IsAbs(info.Endpoint):
		return "", errors.New("the endpoint is not absolute")
	}
	return info.Endpoint, nil
}

// registersItself reports whether the plugin registers on kubelet.sock, so hosts do not call its registration service.
func (s *subject) registersItself() bool { return s.runner != nil && s.runner.Kubelet != nil }
