//go:build linux

package hostile

import (
	"testing"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// answersLarge answers each call with a message of 100 MiB, of which there is one.
func answersLarge(a *attacker) { registerAnd(a, rig.AnswersLarge()...) }

// TestLargeAnswers has 1,000 callers ask for 100 MiB each of a daemon that may have 256 MB, and read at their own pace: it does not grow,
// and others are served meanwhile. They call through the stable socket of the plugin and through the control socket.
func TestLargeAnswers(t *testing.T) {
	const callers, most = 1_000, 256 << 20
	if programs.Raced {
		t.Skip("the race detector takes several times the memory")
	}
	for name, way := range map[string]func(s *scene) (path string, metadata []string){
		"stable": func(s *scene) (string, []string) { return s.awaitStable(), nil },
		"control": func(s *scene) (string, []string) {
			s.awaitStable()
			return s.path("control.sock"), proxy.Route(hostileType, launchedName)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, &attack{})
			rig.BoundMemory(t, s.daemon.Process.Pid, most)
			s.run(launchedName, "call-large", 0)
			path, metadata := way(s)
			stop := s.callNeighbours()
			before := s.usage()
			rig.CallLarge(t, path, metadata, callers, 50, func() { s.newcomer() }) // while all answers wait
			after := s.usage()
			t.Logf("%d calls to neighbours; memory %d to %d KiB, descriptors %d to %d", stop(), before.memory, after.memory,
				before.descriptors, after.descriptors)
			if after.memory<<10 > most {
				t.Errorf("the daemon has up to %d KiB", after.memory)
			}
			s.unharmed()
		})
	}
}
