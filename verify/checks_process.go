package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// unnoticed is how long a socket may refuse connections without a warning: bind(2) and listen(2) are not atomic.
	unnoticed = 20 * time.Millisecond
	// insistence is how long hosts retry without back-off when a new socket refuses connections.
	insistence = 100 * time.Millisecond
	// settled is how long a plugin has served before it gets SIGTERM; if it then exits with an error, the rule is repeated with
	// settledForSure. A plugin may install its signal handler after it creates its socket, and late on a busy machine.
	settled, settledForSure = time.Second, 5 * time.Second
	// hesitation times StartTimeout is how long a plugin may take to register again: some wait until the kubelet is settled.
	hesitation = 3
)

func checkStart(ctx context.Context, s *subject) outcome {
	s.trace.add("start "+s.target.String(), "")
	if s.run == nil {
		err := s.start(ctx)
		s.reported = s.reported || err != nil
		require(err == nil, "%s", text(err))
	}
	return pass("%s answered %v after the start", s.path, s.appeared.After.Round(time.Millisecond))
}

func checkAppearance(ctx context.Context, s *subject) outcome {
	if s.run == nil && s.startErr == nil {
		_ = s.start(ctx) // other rules judge the error
	}
	a := s.appeared
	assume(a != nil, "no socket appeared")
	s.traceAppearance(a)
	first, starts, run := a.Window, 1, s.run
	for ; a.Window >= insistence && starts < maxStarts && s.run != nil; starts++ {
		again, err := s.restart(ctx)
		if err != nil {
			break // other rules report the error
		}
		a = again
		s.traceAppearance(a)
	}
	var waited time.Duration
	if run != nil {
		waited = run.Waited()
	}
	return judgeAppearance(first, waited, a, starts)
}

// judgeAppearance returns the outcome of PRC002 after the last start. first is how long connects were refused at the first start, and
// waited how long the plugin of that start waited for a processor.
func judgeAppearance(first, waited time.Duration, last *runner.Appearance, starts int) outcome {
	window := last.Window.Round(time.Millisecond)
	once := fmt.Sprintf("connects were refused for %v after the socket had appeared, and for %v when it was started again; ",
		first.Round(time.Millisecond), window)
	switch {
	case last.Window < insistence && first >= insistence && waited >= first:
		return outcome{status: Inconclusive, reason: once + "the plugin waited longer for a processor"}
	case last.Window < insistence && first >= insistence:
		return warn("%sthe machine may have been busy", once)
	case last.Refused == 0:
		return pass("the first connect succeeded")
	case last.Window < unnoticed:
		return pass("connected in less than %v", unnoticed)
	case last.Window < insistence:
		return warn("connects were refused for %v after the socket had appeared", window)
	}
	return fail("connects were refused for %v after the socket had appeared, at each of %d starts; hosts try again at once for %v only",
		window, starts, insistence)
}

// maxStarts bounds the starts of a plugin whose socket refuses connections: on a busy machine, one slow start is not the plugin's fault.
const maxStarts = 3

func (s *subject) traceAppearance(a *runner.Appearance) {
	s.trace.add("connect "+a.Path+" until it succeeds", fmt.Sprintf("refused %d times in %v", a.Refused, a.Window.Round(time.Millisecond)))
}

type farewell struct {
	refused error         // why SIGTERM could not be sent
	served  time.Duration // how long the plugin had served
	late    outcome       // a failure if the plugin did not exit in time; otherwise empty
	after   time.Duration
	clean   bool // exit status 0
	how     string
	socket  bool // the registration socket is left
	sockets []string
	others  []string
}

// terminate stops the plugin with SIGTERM, once for all rules about that.
func (s *subject) terminate(ctx context.Context) *farewell {
	if s.ended == nil {
		s.ended = s.terminateSettled(ctx, settled)
		if f := s.ended; f.refused == nil && f.late.status == "" && !f.clean && f.served < settledForSure {
			s.ended = s.terminateSettled(ctx, settledForSure)
		}
	}
	assume(s.ended.refused == nil, "%v", s.ended.refused)
	s.trace.add("SIGTERM", s.ended.how)
	return s.ended
}

// terminateSettled sends SIGTERM to the plugin after it has served for some time.
func (s *subject) terminateSettled(ctx context.Context, served time.Duration) *farewell {
	f := &farewell{}
	s.ready(ctx)
	run, path := s.run, s.path
	s.run = nil
	run.Settle(ctx, served)
	waited := s.waiting()
	began := time.Now()
	f.served = began.Sub(run.Served)
	if f.refused = run.Signal(syscall.SIGTERM); f.refused != nil {
		return f
	}
	inTime := run.AwaitAll(ctx, s.options.ExitTimeout)
	f.after = time.Since(began)
	if !inTime {
		f.late = busy(fail("the plugin had not ended %v after SIGTERM, and was killed", s.options.ExitTimeout), waited)
		_ = run.Kill() // f.late reports it
	}
	f.clean, f.how = run.Clean(), run.End()
	f.sockets, f.others = s.runner.Leftovers()
	if i, found := slices.BinarySearch(f.sockets, path); found {
		f.socket, f.sockets = true, slices.Delete(f.sockets, i, i+1)
	}
	s.runner.Sweep()
	return f
}

func checkTerminate(ctx context.Context, s *subject) outcome {
	f := s.terminate(ctx)
	if f.late.status != "" {
		return f.late
	}
	expect(f.clean, "the plugin ended with %s; supervisors take that for a failure", f.how)
	return pass("it ended %v after SIGTERM with exit status 0", f.after.Round(time.Millisecond))
}

// ownEnd is terminate for rules that do not apply to a plugin that had to be killed.
func (s *subject) ownEnd(ctx context.Context) *farewell {
	f := s.terminate(ctx)
	if f.late.status == Inconclusive {
		end(f.late)
	}
	assume(f.late.status == "", "the plugin had to be killed")
	return f
}

func checkSocketRemoved(ctx context.Context, s *subject) outcome {
	require(!s.ownEnd(ctx).socket, "%s is still there after the end of the plugin", s.path)
	return pass("the socket is gone")
}

func checkNothingLeft(ctx context.Context, s *subject) outcome {
	f := s.ownEnd(ctx)
	require(len(f.sockets) == 0, "these sockets are still there after the end of the plugin: %s", untrusted.QuoteAll(f.sockets))
	expect(len(f.others) == 0, "these files are left in the plugin directory: %s", untrusted.QuoteAll(f.others))
	return pass("nothing is left")
}

func checkStale(ctx context.Context, s *subject) outcome {
	s.ready(ctx)
	run, path := s.run, s.path
	s.run = nil
	s.trace.add("SIGKILL, and start again", "")
	err := run.Signal(syscall.SIGKILL)
	assume(err == nil, "%v", err)
	require(run.AwaitAll(ctx, s.options.ExitTimeout), "the plugin is still there after SIGKILL")
	_, err = sock.Stat(path)
	assume(err == nil, "the killed plugin left no socket")
	again, a, err := s.runner.StartAfter(ctx, run)
	if err != nil {
		s.runner.Sweep()
		return fail("after SIGKILL left %s, %s", path, text(err))
	}
	s.run, s.path = again, a.Path
	where := "the same path"
	if a.Path != path {
		where = fmt.Sprintf("another path, %s,", a.Path)
	}
	return pass("the plugin came up at %s in %v", where, (a.After + a.Window).Round(time.Millisecond))
}

func checkSecond(ctx context.Context, s *subject) outcome {
	s.ready(ctx)
	first, path := s.run, s.path
	s.trace.add("start a second instance", "")
	second, a, err := s.runner.StartBeside(ctx, first)
	if err != nil {
		// The second instance may refuse to run, but must not disturb the first.
		require(!first.HasEnded(), "the first instance ended although the second did not serve: %s", text(err))
		_, gerr := s.getInfo(ctx)
		require(gerr == nil, "the second instance did not serve (%s), and the first cannot be reached at %s any more: %s", text(err), path,
			brief(gerr))
		expect(strings.Contains(err.Error(), "before it served"), "the second instance neither exits nor serves: %s", text(err))
		return pass("the second instance exits and the first keeps serving")
	}
	s.run, s.path = second, a.Path
	s.trace.add("SIGTERM to the first instance", "")
	err = first.Signal(syscall.SIGTERM)
	assume(err == nil, "%v", err)
	if !first.AwaitAll(ctx, s.options.ExitTimeout) {
		_ = first.Kill() // PRC003 judges that
	}
	info, err := sock.Stat(a.Path)
	expect(err == nil, "the end of the first instance removed the socket of the second, %s", a.Path)
	expect(info.ID == a.ID, "the end of the first instance left another socket than that of the second at %s", a.Path)
	_, err = s.getInfo(ctx)
	requireCall("after the end of the first instance, GetInfo of the second", err)
	return pass("the second instance serves at %s, also after the end of the first", a.Path)
}

// assumeFit ends the check as not applicable if the rule is not for the plugin's way of registering.
func (s *subject) assumeFit(rule Rule) {
	assume(rule.family() != "KUB" || s.registersItself(),
		"it is for device plugins that register on %s; verify the command with --kubelet-sock", runner.KubeletSocket)
	asks := slices.Contains([]string{"REG005", "REG006", "REG009", "REG011", "REG012", "REG013"}, rule.ID)
	assume(!asks || !s.registersItself(), "the plugin registers on %s, so hosts neither ask nor notify it", runner.KubeletSocket)
}

func checkRegistered(_ context.Context, s *subject) outcome {
	request := s.appeared.Request
	s.trace.add("(the plugin called Register)", show(request))
	requireValid(runner.CheckRegister(request))
	return pass("registered is %s at %s", untrusted.Quote(request.ResourceName), untrusted.Quote(request.Endpoint))
}

func checkRegistersAgain(ctx context.Context, s *subject) outcome {
	run := s.run
	s.trace.add("remove the plugin's socket, and make kubelet.sock anew", "")
	s.runner.Kubelet.Close()
	s.runner.Kubelet.Forget()
	s.runner.Sweep() // as the kubelet does when it starts
	err := s.runner.Kubelet.Serve()
	assume(err == nil, "%v", err)
	a, err := s.runner.AwaitRegister(ctx, run, hesitation*s.options.StartTimeout)
	if err != nil {
		s.run = nil
		if run.HasEnded() {
			return warn("the plugin exits, and must be restarted: %s", run.End())
		}
		_ = run.Kill() // so that the next rules start an instance that serves
		s.runner.Sweep()
		return fail("%s", text(err))
	}
	s.path = a.Path
	was, now := s.appeared.Request.ResourceName, a.Request.ResourceName
	require(now == was, "the plugin registered %s, and now %s", untrusted.Quote(was), untrusted.Quote(now))
	return pass("registered again at %s", untrusted.Quote(a.Request.Endpoint))
}
