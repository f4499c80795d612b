package verify

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/foreign"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

func processRules() []Rule {
	return []Rule{
		{
			ID: "PRC003", Title: "SIGTERM ends the plugin in time", Command: true,
			Why:    "Supervisors send SIGTERM and kill what does not end; what is killed cannot finish calls or clean up.",
			Remedy: "on SIGTERM, remove the socket, let calls finish for a bounded time, and exit with status 0",
			check:  checkTerminate,
		},
		{
			ID: "PRC004", Title: "SIGTERM removes the socket", Command: true,
			Why:    "A socket on which nobody accepts looks like a plugin that hangs, and hosts try it again and again.",
			Remedy: "remove the socket before the server stops; in Go, close the listener on SIGTERM instead of letting the signal end the process",
			check:  checkSocketRemoved,
		},
		{
			ID: "PRC005", Title: "Nothing else is left in the plugin directory", Command: true,
			Why:    "Hosts search the plugin directory; what is left there is searched, tried and warned of for ever.",
			Remedy: "remove the sockets that the plugin made, and keep other files elsewhere",
			check:  checkNothingLeft,
		},
		{
			ID: "PRC006", Title: "The plugin comes up although one that was killed has left its socket", Command: true,
			Why:    "A crash leaves the socket. A plugin that cannot bind then stays down until somebody removes it by hand.",
			Remedy: "before bind, remove a socket at the path on which nobody accepts",
			check:  checkStale,
		},
		{
			ID: "PRC007", Title: "A second instance does no harm", Command: true,
			Why: "During an upgrade two instances overlap. If the older one removes the path when it ends, it removes the newer one's socket, " +
				"and the plugin is gone although it runs.",
			Remedy: "let the second exit with an error and leave the first alone; or take the path over, and remove a socket only if it is still " +
				"the one that this process made (the same inode)",
			check: checkSecond,
		},
	}
}

const (
	// settled is how long a plugin has served before it is sent SIGTERM, and settledForSure how long if that did not end it in order: what
	// cleans up may be set up after the socket, and a busy machine takes its time for that.
	settled, settledForSure = time.Second, 5 * time.Second
)

// farewell is what happened on SIGTERM.
type farewell struct {
	refused outcome       // why it could not be tried
	served  time.Duration // how long the plugin had served
	inTime  bool
	after   time.Duration
	clean   bool // exit status 0
	how     string
	socket  bool // is still there
	sockets []string
	others  []string
}

// terminate ends the plugin with SIGTERM, once for all rules that look at it.
func (s *subject) terminate(ctx context.Context) *farewell {
	if s.ended != nil {
		return s.ended
	}
	s.ended = s.terminateSettled(ctx, settled)
	if f := s.ended; f.refused.status == "" && f.inTime && !f.clean && f.served < settledForSure {
		s.ended = s.terminateSettled(ctx, settledForSure)
	}
	return s.ended
}

// terminateSettled ends a plugin that has served for some time with SIGTERM.
func (s *subject) terminateSettled(ctx context.Context, served time.Duration) *farewell {
	f := &farewell{}
	if f.refused = s.ready(ctx); f.refused.status != "" {
		return f
	}
	run, path := s.run, s.path
	s.run = nil
	run.settle(ctx, served)
	began := time.Now()
	f.served = began.Sub(run.served)
	if err := run.signal(syscall.SIGTERM); err != nil {
		f.refused = notApplicable("%v", err)
		return f
	}
	f.inTime = run.await(ctx, s.options.ExitTimeout)
	f.after = time.Since(began)
	if !f.inTime {
		_ = run.kill() // the outcome is that it had to be
	}
	f.clean, f.how = run.proc.Err() == nil, run.end()
	sockets, others := s.bench.left()
	for _, left := range sockets {
		if left == path {
			f.socket = true
		} else {
			f.sockets = append(f.sockets, left)
		}
	}
	f.others = others
	s.bench.sweep()
	return f
}

func checkTerminate(ctx context.Context, s *subject) outcome {
	f := s.terminate(ctx)
	if f.refused.status != "" {
		return f.refused
	}
	s.trace.add("SIGTERM", f.how)
	switch {
	case !f.inTime:
		return fail("the plugin had not ended %v after SIGTERM, and was killed", s.options.ExitTimeout)
	case !f.clean:
		return warn("the plugin ended with %s; supervisors take that for a failure", f.how)
	}
	return pass("it ended %v after SIGTERM with exit status 0", f.after.Round(time.Millisecond))
}

func checkSocketRemoved(ctx context.Context, s *subject) outcome {
	f := s.terminate(ctx)
	switch {
	case f.refused.status != "":
		return f.refused
	case !f.inTime:
		return notApplicable("the plugin had to be killed")
	}
	s.trace.add("SIGTERM", f.how)
	if f.socket {
		return fail("%s is still there after the end of the plugin", s.path)
	}
	return pass("the socket is gone")
}

func checkNothingLeft(ctx context.Context, s *subject) outcome {
	f := s.terminate(ctx)
	switch {
	case f.refused.status != "":
		return f.refused
	case !f.inTime:
		return notApplicable("the plugin had to be killed")
	}
	s.trace.add("SIGTERM", f.how)
	if len(f.sockets) > 0 {
		return fail("these sockets are still there after the end of the plugin: %s", foreign.QuoteAll(f.sockets))
	}
	if len(f.others) > 0 {
		return warn("these files are left in the plugin directory: %s", foreign.QuoteAll(f.others))
	}
	return pass("nothing is left")
}

func checkStale(ctx context.Context, s *subject) outcome {
	if o := s.ready(ctx); o.status != "" {
		return o
	}
	run, path := s.run, s.path
	s.run = nil
	s.trace.add("SIGKILL, and start again", "")
	if err := run.signal(syscall.SIGKILL); err != nil {
		return notApplicable("%v", err)
	}
	if !run.await(ctx, s.options.ExitTimeout) {
		return fail("the plugin is still there after SIGKILL")
	}
	if _, err := sock.Stat(path); err != nil {
		return notApplicable("the killed plugin left no socket")
	}
	again, a, err := s.bench.startAfter(ctx, run)
	if err != nil {
		s.bench.sweep()
		return fail("after SIGKILL left %s, %s", path, clip(err.Error()))
	}
	s.run, s.path = again, a.path
	if a.path != path {
		return pass("the plugin came up at another path, %s, in %v", a.path, (a.after + a.window).Round(time.Millisecond))
	}
	return pass("the plugin came up at the same path in %v", (a.after + a.window).Round(time.Millisecond))
}

func checkSecond(ctx context.Context, s *subject) outcome {
	if o := s.ready(ctx); o.status != "" {
		return o
	}
	first, path := s.run, s.path
	s.trace.add("start a second instance", "")
	second, a, err := s.bench.startAfter(ctx, first)
	if err != nil {
		// It would not run beside the first. That must be all.
		if first.hasEnded() {
			return fail("the first instance ended although the second did not serve: %s", clip(err.Error()))
		}
		if _, gerr := s.getInfo(ctx); gerr != nil {
			return fail("the second instance did not serve (%s), and the first cannot be reached at %s any more: %s", clip(err.Error()),
				path, clip(brief(gerr)))
		}
		if strings.Contains(err.Error(), "before it served") {
			return pass("the second instance exits and the first serves on")
		}
		return warn("the second instance neither exits nor serves: %s", clip(err.Error()))
	}
	s.run, s.path = second, a.path
	s.trace.add("SIGTERM to the first instance", "")
	if err := first.signal(syscall.SIGTERM); err != nil {
		return notApplicable("%v", err)
	}
	if !first.await(ctx, s.options.ExitTimeout) {
		_ = first.kill() // PRC003 says what it thinks of that
	}
	info, err := sock.Stat(a.path)
	switch {
	case err != nil:
		return warn("the end of the first instance removed the socket of the second, %s", a.path)
	case info.ID != a.id:
		return warn("the end of the first instance left another socket than that of the second at %s", a.path)
	}
	if _, err := s.getInfo(ctx); err != nil {
		return fail("after the end of the first instance, GetInfo of the second %s", clip(brief(err)))
	}
	return pass("%s", fmt.Sprintf("the second instance serves at %s, also after the end of the first", a.path))
}
