//go:build linux

package hostile

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

var page = rig.NewPage("../../docs/reference/hostile-plugins.md")

const (
	// What the configuration bounds; see scene.config.
	maxSockets, maxDepth = 25, 4 // each socket that is found at the same time as others takes a goroutine

	// The bounds that hold for every attack: what the daemon may use beyond what it used before.
	moreGoroutines, moreDescriptors = 40, 40
	moreMemory                      = 64 << 10 // KiB, of its resident set at the peak
	// raceFactor is how much more memory a daemon with the race detector may use.
	raceFactor = 8
)

// attack is a hostile plugin and what happens then.
type attack struct {
	name string
	// does says what the plugin does, happens what the daemon does, and bound what bounds it, beside the bounds of all.
	does, happens, bound string
	// play is the attack, in a process of its own. Unless launched is set, that process is started by the test, as user if that is not zero.
	play func(*attacker)
	user uint32
	// launched has the daemon launch the plugin as a user of its own; it is what its entry in the catalogue has beyond that. root: it takes
	// root for another reason.
	launched string
	root     bool
	// trust has the plugin directory open to all, with the sticky bit, and is what the configuration says of trust beyond that.
	trust string
	// named says where the daemon names what happened: all must come.
	named []naming
	// check is what else must hold while the attack lasts. May be nil.
	check func(*scene)
	// harms: it is a plugin of the daemon's own user, which can do something to the neighbours. They are repaired after its end.
	harms bool
}

// naming is a text by which the daemon names an attack, and where.
type naming struct{ where, text string }

// Where an attack is named.
const (
	inEvent     = "event"     // of the plugin: KIND: MESSAGE
	inCondition = "condition" // of the daemon: in patchbay list, /readyz and the metrics
	inLog       = "log"       // what the launched plugin logged, as patchbay logs shows it
	inStatus    = "status"    // of the launched plugin: STATE: LAST ERROR
)

func event(text string) []naming { return []naming{{inEvent, text}} }

// find says whether the daemon has named something.
func (s *scene) find(n naming) bool {
	s.Helper()
	switch n.where {
	case inEvent:
		return slices.ContainsFunc(s.events(), func(e client.Event) bool {
			of := e.SocketPath != "" || e.Name != ""
			neighbour := s.neighbours[e.Name] != "" && s.neighbours[e.Name] == e.Instance
			return of && !neighbour && strings.Contains(e.Kind+": "+e.Message, n.text)
		})
	case inCondition:
		return slices.ContainsFunc(s.list().Conditions, func(c client.Condition) bool {
			return c.Status != "ok" && strings.Contains(c.Message, n.text)
		})
	case inLog:
		for r, err := range s.client.Logs(s.Context(), launchedName, client.LogsOptions{}) {
			if err != nil {
				s.Fatal(err)
			}
			if strings.Contains(r.Message, n.text) {
				return true
			}
		}
		return false
	case inStatus:
		all, err := s.client.ListLaunched(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		return slices.ContainsFunc(all, func(l client.Launched) bool {
			return l.Name == launchedName && strings.Contains(l.State+": "+l.LastError, n.text)
		})
	}
	s.Fatalf("nothing is named in %q", n.where)
	return false
}

// catalogue returns all attacks.
func catalogue() []attack {
	return slices.Concat(wireAttacks(), lyingAttacks(), endpointAttacks(), directoryAttacks(), trustAttacks(), launchedAttacks(), callAttacks())
}

// groups are the headings of the documentation, in the order of the catalogue.
func groups() []group {
	return []group{
		{"Protocol", "The registration protocol is broken at each of its steps.", wireAttacks()},
		{"Lies", "The protocol is spoken well, and what is said is not true or not decent.", lyingAttacks()},
		{"Endpoints", "The plugin says that its services are where they are not.", endpointAttacks()},
		{"Plugin directory", "The plugin does something with files.", directoryAttacks()},
		{"Trust", "The plugin directory has mode 1777 and `trust.sticky` is set, so that every user can make sockets there. Whom the configuration\n" +
			"names beside that is in parentheses.", trustAttacks()},
		{"Launched plugins", "The daemon launches the plugin as a user of its own, with limits where said.", launchedAttacks()},
		{"Calls", "The plugin is registered and called.", callAttacks()},
	}
}

type group struct {
	title, text string
	attacks     []attack
}

func TestHostilePlugins(t *testing.T) {
	for _, a := range catalogue() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			if (a.root || a.launched != "" || a.user != 0) && !root {
				t.Skip("it takes root to run a plugin as another user")
			}
			a.run(t)
		})
	}
}

func (a *attack) run(t *testing.T) {
	s := newScene(t, a)
	stop := func() int { return 0 }
	if !a.harms {
		stop = s.callNeighbours()
	}
	s.resetPeak()
	before := s.usage()
	end := func() {}
	if a.launched != "" {
		if _, err := s.client.Launch(t.Context(), launchedName); err != nil {
			t.Fatal(err)
		}
	} else if a.play != nil {
		end = s.run(launchedName, a.name, a.user)
	}
	for _, n := range a.named {
		s.await(fmt.Sprintf("the %s has %q", n.where, n.text), func() bool { return s.find(n) })
	}
	if a.check != nil {
		a.check(s)
	}
	s.newcomer()
	after := s.usage()
	calls := stop()
	if !a.harms {
		s.unharmed()
	}
	memory := moreMemory
	if raceEnabled {
		memory *= raceFactor
	}
	for _, b := range []struct {
		what                string
		before, after, more int
	}{
		{"goroutines", before.goroutines, after.goroutines, moreGoroutines},
		{"descriptors", before.descriptors, after.descriptors, moreDescriptors},
		{"KiB of memory", before.memory, after.memory, memory},
	} {
		if b.after > b.before+b.more {
			t.Errorf("under the attack the daemon has up to %d %s, %d before it; at most %d more are allowed", b.after, b.what, b.before, b.more)
		}
	}
	t.Logf("%d calls to neighbours; goroutines %d to %d, descriptors %d to %d, memory %d to %d KiB", calls,
		before.goroutines, after.goroutines, before.descriptors, after.descriptors, before.memory, after.memory)
	end()
	if a.launched != "" {
		if _, err := s.client.Stop(t.Context(), launchedName); err != nil {
			t.Error(err)
		}
		s.await("nothing is left of the plugin", func() bool { return len(s.processes()) == 0 })
	}
	if a.harms {
		s.repaired()
	}
}

func TestDocumentation(t *testing.T) {
	page.Check(t, document())
	names := map[string]bool{}
	for _, a := range catalogue() {
		if names[a.name] || a.does == "" || a.happens == "" {
			t.Errorf("attack %q has no name of its own or no description", a.name)
		}
		names[a.name] = true
	}
	if len(names) < 30 {
		t.Errorf("there are %d attacks", len(names))
	}
}

func document() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `# Hostile plugins

What %d hostile plugins do, and what happens to them. Each is a process and has a daemon of its own, with neighbours: a plugin that was
discovered and one that was launched as another user. While the attack lasts, the neighbours are called through their stable sockets and
through the control socket, and another plugin registers. Unless the table says otherwise, no call fails, no neighbour has an event, each
stays the instance that it was, and the daemon uses at most %d goroutines, %d descriptors and %d MiB of memory more than before. This page is
generated from the tests in [integration/hostile](../../integration/hostile), which show it.

Unless said otherwise a plugin runs as the daemon's own user, which is root. Deadlines of one second for GetInfo and Notify, %d sockets in a
directory and a depth of %d are configured; all else is as it is by default.
`, len(catalogue()), moreGoroutines, moreDescriptors, moreMemory>>10, maxSockets, maxDepth)
	cell := func(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
	for _, g := range groups() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| plugin | what it does | what happens | how it is named | what bounds it |\n|---|---|---|---|---|\n", g.title, g.text)
		for _, a := range g.attacks {
			var named []string
			for _, n := range a.named {
				named = append(named, n.where+" `"+n.text+"`")
			}
			does := a.does
			switch {
			case a.trust != "":
				does += " (`" + a.trust + "`)"
			case a.user != 0:
				does += " (as another user)"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", a.name, cell(does), cell(a.happens), cell(strings.Join(named, "; ")), cell(a.bound))
		}
	}
	return b.Bytes()
}
