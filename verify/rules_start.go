package verify

import (
	"context"
	"fmt"
	"time"
)

const (
	// unnoticed is how long a socket may refuse connections before that counts as a gap: longer than a scheduler takes to run the listen(2)
	// that follows a bind(2).
	unnoticed = 20 * time.Millisecond
	// insistence is how long hosts try again at once when a socket that has just appeared refuses them.
	insistence = 100 * time.Millisecond
)

func startRules() []Rule {
	return []Rule{
		{
			ID: "PRC001", Title: "The command makes a registration socket in time", Command: true,
			Why: "Nothing finds a plugin without a socket.",
			Remedy: "serve the registration service at the path in {socket} or PATCHBAY_SOCKET, or under any name in {dir} or " +
				"PATCHBAY_PLUGIN_DIR; a plugin that needs longer wants --start-timeout",
			check: checkStart,
		},
		{
			ID: "PRC002", Title: "The socket can be connected to from its first appearance", Command: true,
			Why: "A host acts on the appearance of the socket. One that is bound and not listening yet refuses it, and the next try may come " +
				"seconds later.",
			Remedy: "do nothing between bind and listen; best bind and listen under a hidden name in the same directory, and rename the socket " +
				"into place",
			check: checkAppearance,
		},
	}
}

func checkStart(ctx context.Context, s *subject) outcome {
	s.trace.add("start "+s.target.String(), "")
	if s.run == nil {
		if err := s.start(ctx); err != nil {
			s.told = true
			return fail("%s", clip(err.Error()))
		}
	}
	return pass("%s answered %v after the start", s.path, s.appeared.after.Round(time.Millisecond))
}

func checkAppearance(ctx context.Context, s *subject) outcome {
	if s.run == nil && s.starting == nil {
		_ = s.start(ctx) // what the appearance says is all that counts here
	}
	a := s.appeared
	if a == nil {
		return notApplicable("no socket appeared")
	}
	s.trace.add("connect "+a.path+" until it succeeds", fmt.Sprintf("refused %d times in %v", a.refused, a.window.Round(time.Millisecond)))
	switch {
	case a.refused == 0:
		return pass("the first connect succeeded")
	case a.window < unnoticed:
		return pass("connected in less than %v", unnoticed)
	case a.window < insistence:
		return warn("connects were refused for %v after the socket had appeared", a.window.Round(time.Millisecond))
	}
	return fail("connects were refused for %v after the socket had appeared; hosts try again at once for %v only",
		a.window.Round(time.Millisecond), insistence)
}
