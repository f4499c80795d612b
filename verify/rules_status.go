package verify

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// settle is how long a plugin is watched for an end that follows what it was told.
const settle = 500 * time.Millisecond

func statusRules() []Rule {
	return []Rule{
		{
			ID: "REG011", Title: "The status \"registered\" is accepted twice",
			Why:    "Hosts tell it after each of their restarts. One that gets an error takes the plugin out of service and tries again.",
			Remedy: "implement NotifyRegistrationStatus so that it answers at once, also if it knows already",
			check:  checkTold,
		},
		{
			ID: "REG012", Title: "The plugin survives the restart of its host",
			Why:    "The host's connection breaks, and then it connects, asks and tells again.",
			Remedy: "keep nothing that belongs to one connection, and treat the loss of a connection as nothing special",
			check:  checkHostRestart,
		},
		{
			ID: "REG013", Title: "A refusal is survived, or ends the plugin cleanly", Command: true,
			Why: "A host that refuses the plugin today may take it tomorrow. A plugin that hangs is never taken, and one that exits and leaves " +
				"its socket looks dead for as long as nobody starts it again.",
			Remedy: "on plugin_registered=false, log the error and serve on; or remove the socket and exit, for a supervisor to start it again",
			check:  checkRefusal,
		},
	}
}

func checkTold(ctx context.Context, s *subject) outcome {
	if o := s.checkable(ctx); o.status != "" {
		return o
	}
	for _, time := range []string{"first", "second"} {
		if err := s.notify(ctx, true, ""); err != nil {
			return fail("the %s NotifyRegistrationStatus %s", time, clip(brief(err)))
		}
	}
	return pass("accepted twice")
}

func checkHostRestart(ctx context.Context, s *subject) outcome {
	first, o := s.info(ctx)
	if first == nil {
		return o
	}
	// A host that is killed leaves its requests.
	conn, err := sock.Dial(ctx, s.path)
	if err != nil {
		return fail("a connect fails: %v", err)
	}
	requests, err := unreadRequests(s.question(), 1)
	if err == nil {
		s.speak(conn, string(requests))
	}
	_ = conn.Close() // as the kernel does for a host that died
	s.trace.reset()
	again, err := s.getInfo(ctx)
	switch {
	case err != nil:
		return fail("after the host was gone, GetInfo %s", clip(brief(err)))
	case again.Type != first.Type || again.Name != first.Name:
		return fail("after the host was gone, the plugin has another name")
	case !proto.Equal(first, again):
		s.trace.add("(the first GetInfo)", show(first))
		return warn("after the host was gone, the plugin says something else")
	}
	if err := s.notify(ctx, true, ""); err != nil {
		return fail("after the host was gone, NotifyRegistrationStatus %s", clip(brief(err)))
	}
	return pass("asked and told again after the connection was lost")
}

func checkRefusal(ctx context.Context, s *subject) outcome {
	if o := s.checkable(ctx); o.status != "" {
		return o
	}
	run := s.run
	err := s.notify(ctx, false, "refused by patchbay verify, to see what happens")
	if run.await(ctx, settle) {
		s.run = nil
		how := run.end()
		if _, err := sock.Stat(s.path); err == nil {
			s.bench.sweep()
			return warn("the plugin exits when it is refused (%s), and leaves its socket", how)
		}
		return pass("the plugin exits when it is refused, and removes its socket: %s", how)
	}
	if err != nil && !answered(err) { // an error of the plugin itself is an answer, which hosts ignore
		return fail("the refusal %s, and the plugin did not exit", clip(brief(err)))
	}
	if _, err := s.getInfo(ctx); err != nil {
		return fail("after a refusal, GetInfo %s", clip(brief(err)))
	}
	if err := s.notify(ctx, true, ""); err != nil {
		return fail("after a refusal, the status \"registered\" %s", clip(brief(err)))
	}
	return pass("the plugin serves on, and is registered at the next try")
}
