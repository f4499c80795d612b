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

// subject is the plugin that is verified, and what is known of it. One goroutine uses it.
type subject struct {
	target  Target
	options Options
	claims  []*drav1.Claim // of the options
	runner  *runner.Runner // nil without a command

	path string           // the registration socket; empty until one is known
	run  *runner.Instance // the instance that runs; nil without a command, before the first start and after an end that a rule caused

	trace trace // of the rule that is being checked

	appeared *runner.Appearance // of the first start
	lost     string             // why there is nothing to verify any more
	told     bool               // a rule failed because the plugin cannot be asked; the others need not fail for it too
	starting error              // why the first start failed
	asked    *answer            // what GetInfo said
	vendor   string             // the version that a CSI driver says it has
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

// inTime asks until the answer is final or the time is up in which a plugin may start: until then one may serve and say that it is not
// ready yet, and nobody tells when it is.
func (s *subject) inTime(ctx context.Context, ask func() (final bool, o outcome)) outcome {
	for deadline := time.Now().Add(s.options.StartTimeout); ; runner.Pause(ctx, 100*time.Millisecond, nil) {
		final, o := ask()
		if final || ctx.Err() != nil || !time.Now().Before(deadline) {
			return o
		}
	}
}

// starved is how long a plugin's processes may wait for a processor before a failure says nothing of them: most time limits of rules are
// not much longer.
const starved = 2 * time.Second

// busy makes a failure inconclusive if the plugin's processes, or the one that verifies it, waited long for a processor during the check.
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

// waiting returns a function that returns for how long the processes have waited for a processor since. The result is never negative,
// although the waiting of a thread is no longer counted when the thread has ended.
func (s *subject) waiting() func() time.Duration {
	before := s.waited()
	return func() time.Duration { return max(s.waited()-before, 0) }
}

// waited returns how long the processes that were started have waited for a processor, and this one. Of this one, whose threads often wait
// beside each other, that is no more than has passed.
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
	if rule.Command && s.runner == nil {
		return notApplicable("it would start, refuse or end the plugin; verify a command for it")
	}
	if o := s.timeIsUp(ctx); o.status != "" {
		return o
	}
	if o := s.fits(rule); o.status != "" {
		return o
	}
	if rule.family() != "PRC" && rule.family() != "ENV" {
		if o := s.ready(ctx); o.status != "" {
			return o
		}
	}
	if rule.Type != "" {
		info, o := s.info(ctx)
		if info == nil {
			return o
		}
		if info.Type != rule.Type {
			return notApplicable("the plugin is of type %s, the rule is for %s", untrusted.Quote(info.Type), rule.Type)
		}
	}
	o := rule.check(ctx, s)
	if up := s.timeIsUp(ctx); up.status != "" && o.status != Passed {
		return up
	}
	if lost := s.mourn(ctx, rule); lost.status != "" {
		return lost
	}
	return o
}

// recover waits for a moment until a plugin that was asked too much answers again, so that one failure is not the next rule's as well.
func (s *subject) recover(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for {
		if _, err := s.query(ctx, nil); err == nil || ctx.Err() != nil {
			return
		}
		runner.Pause(ctx, 10*time.Millisecond, nil) // the plugin tells nobody that it has room again
	}
}

func (s *subject) timeIsUp(ctx context.Context) outcome {
	// The deadline itself, because the timer of the context may be later than what the deadline has ended already.
	if deadline, ok := ctx.Deadline(); ctx.Err() == nil && (!ok || time.Now().Before(deadline)) {
		return outcome{}
	}
	o := fail("the time for the verification, %v, was up before it was checked", s.options.Timeout)
	o.remedy = "allow more time, or see which rule before it took so long"
	return o
}

// ready starts the plugin if necessary, or returns an outcome that says why there is nothing to check.
func (s *subject) ready(ctx context.Context) outcome {
	if s.lost != "" {
		return s.unasked("%s", s.lost)
	}
	if s.runner == nil || s.run != nil {
		return outcome{}
	}
	if err := s.start(ctx); err != nil {
		return s.unasked("the plugin did not start: %s", clip(err.Error()))
	}
	return outcome{}
}

// unasked returns the outcome of a rule that cannot call the plugin. The first such rule fails.
func (s *subject) unasked(format string, args ...any) outcome {
	if s.told {
		return notApplicable("the plugin cannot be asked: an earlier rule says why")
	}
	s.told = true
	return fail(format, args...)
}

// start starts the plugin. It is not tried again after an error.
func (s *subject) start(ctx context.Context) error {
	if s.starting != nil {
		return s.starting
	}
	run, a, err := s.runner.Start(ctx)
	if s.appeared == nil {
		s.appeared = a
	}
	if err != nil {
		s.starting = err
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

// mourn returns a failure if the plugin exited during a check that should not have ended it.
func (s *subject) mourn(ctx context.Context, rule Rule) outcome {
	if s.runner == nil {
		if _, err := sock.Probe(ctx, s.path); !sock.IsGone(err) && !sock.IsRefused(err) || s.lost != "" {
			return outcome{}
		}
		if s.asked == nil || s.asked.err != nil {
			return outcome{} // it was never there; the rules say so
		}
		s.lose(fmt.Sprintf("nobody accepts on the socket any more since %s was checked", rule.ID), "")
		return fail("nobody accepts on the socket any more: the plugin ended while the rule was checked")
	}
	if s.run == nil || !s.run.HasEnded() {
		return outcome{}
	}
	how := s.run.End()
	_ = s.run.Kill() // what is left of it
	s.run = nil
	return fail("the plugin ended while the rule was checked: %s", how)
}

// info returns what the plugin announces, or an outcome if it does not answer.
func (s *subject) info(ctx context.Context) (*registerapi.PluginInfo, outcome) {
	a := s.ask(ctx)
	if a.err != nil {
		return nil, s.unasked("the plugin does not say what it is: GetInfo %s", clip(brief(a.err)))
	}
	return a.info, outcome{}
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

// getInfo calls GetInfo on a connection of its own. A plugin that registers by itself is asked something else there.
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

// registersItself reports whether the plugin registers on kubelet.sock, and is not asked and told by its host.
func (s *subject) registersItself() bool { return s.runner != nil && s.runner.Kubelet != nil }
