package verify

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

func environmentRules() []Rule {
	return []Rule{{
		ID: "ENV001", Title: "No other host watches the plugin directory",
		Why: "A host that watches the directory registers the plugin too, so what the plugin sees during the verification comes from both, " +
			"and that host follows every end and start.",
		Remedy: "verify in a directory of its own: give a command instead of a socket, or another --dir; or stop the other host meanwhile",
		check:  checkAlone,
	}}
}

func checkAlone(ctx context.Context, s *subject) outcome {
	dir, plugin := filepath.Dir(s.path), 0
	if s.bench != nil {
		dir = s.bench.dir // in which no plugin runs yet
	} else if peer, err := sock.Probe(ctx, s.path); err == nil {
		plugin = peer.PID
	}
	others, err := watchersOf(dir, plugin)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return notApplicable("this system does not say who watches a directory")
	case err != nil:
		return notApplicable("cannot find out who watches %s: %v", dir, err)
	case len(others) > 0:
		return warn("%s is watched by %s", dir, strings.Join(others, ", "))
	}
	return pass("no process that can be seen from here watches %s", dir)
}
