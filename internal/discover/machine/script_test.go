package machine_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestScripts runs the scripts in testdata: below each input stand the effects that it leads to, and the states after it. "go test -rewrite"
// writes what happens into them.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		s.start(&machine.Machine{})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
		for _, row := range s.amiss {
			t.Errorf("%s → %s, %s: the table has no such row", row.From, row.To, row.On)
		}
	})
}

var timers = []string{"retry", "decide", "replace", "turn-up", "grace", "rob", "look-again", "look-again-too"}

// script is a machine and what is around it, as a script sees them.
type script struct {
	m           *machine.Machine
	now         time.Time
	out         []machine.Effect
	appearances uint64
	paths       map[string]uint64 // the appearance at each path
	asked       map[machine.Ref]string
	ids         int
	amiss       []machine.Row
}

func (s *script) start(m *machine.Machine, restored ...plugin.Instance) {
	s.paths, s.asked = map[string]uint64{}, map[machine.Ref]string{}
	s.m, s.out = m, m.Start(s.moment(), restored, nil)
	s.m.Entered = func(_ machine.Ref, row machine.Row) {
		if !machine.InTable(row) {
			s.amiss = append(s.amiss, row)
		}
	}
}

// moment is now, with a chance that makes no pause shorter.
func (s *script) moment() machine.Moment { return machine.Moment{Now: s.now} }

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "machine":
		s.configure(d)
	case "pass": // time
		var after string
		d.ScanArgs(t, "time", &after)
		passed, err := time.ParseDuration(after)
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(passed)
	case "states":
	default:
		s.out = append(s.out, s.m.Step(s.moment(), s.input(t, d))...)
	}
	return s.report()
}

func (s *script) configure(d *datadriven.TestData) {
	m := &machine.Machine{IgnoreUnhandled: d.HasArg("ignore"), Admits: d.HasArg("admits")}
	if d.HasArg("grace") {
		m.UnreachableGrace = 10 * time.Second
	}
	var restored []plugin.Instance
	if d.HasArg("restored") {
		restored = append(restored, plugin.Instance{
			ID: "old", Type: "T", Name: "foo", Versions: []string{"v1"}, Endpoint: "/a", SocketPath: "/a",
			Socket: plugin.SocketID{Device: 1, Inode: 1}, Peer: plugin.Peer{PID: 1, Start: 1, Boot: "b"}, Rank: 1 << 26,
		})
	}
	s.start(m, restored...)
}

// input reads one from a line.
func (s *script) input(t *testing.T, d *datadriven.TestData) machine.Input {
	t.Helper()
	arg := func(key string) (value string) {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &value)
		}
		return value
	}
	ref := func() machine.Ref {
		var n uint64
		d.ScanArgs(t, "of", &n)
		return machine.Ref(n)
	}
	ptype, name, _ := strings.Cut(arg("name"), "/")
	switch d.Cmd {
	case "socket":
		return s.changed(t, arg("at"), arg("to"), d)
	case "answer":
		r := ref()
		return machine.Answered{
			Ref: r, Path: s.asked[r], Info: plugin.Info{Type: ptype, Name: name, Endpoint: arg("endpoint"), Versions: []string{"v1"}},
			Failure: failure(arg("error")), Peer: plugin.Peer{PID: int(s.paths[s.asked[r]]), Start: 1, Boot: "b"},
		}
	case "return":
		s.ids++
		return machine.Returned{Key: plugin.Name{Type: ptype, Name: name}, Failure: failure(arg("error")), ID: fmt.Sprint("id", s.ids),
			Kept: d.HasArg("kept")}
	case "told":
		return machine.Delivered{Ref: ref()}
	case "fire":
		return machine.Fired{Timer: machine.Timer{Ref: ref(), Kind: machine.TimerKind(slices.Index(timers, arg("timer")))}}
	case "hint":
		return machine.Hinted{Ref: ref()}
	case "probe":
		r := ref()
		return machine.Probed{Ref: r, Path: arg("at"), Failure: failure(arg("error")), Watched: true}
	case "sought":
		return machine.Sought{Ref: ref(), Listens: d.HasArg("listens")}
	case "ended":
		return machine.Ended{Ref: ref()}
	case "unwatchable":
		return machine.Unwatchable{Ref: ref()}
	case "handler":
		var n int
		d.ScanArgs(t, "number", &n)
		return machine.HandlerSet{Type: arg("type"), Handler: n}
	case "complete":
		return machine.Complete{}
	case "urge":
		return machine.Urged{Key: plugin.Name{Type: ptype, Name: name}}
	}
	t.Fatalf("%s: no such input: %s", d.Pos, d.Cmd)
	return nil
}

// changed is a socket that appears, or goes, or moves to another path, in place of what is there.
func (s *script) changed(t *testing.T, at, to string, d *datadriven.TestData) machine.Input {
	t.Helper()
	change := func(path string, appearance uint64) machine.Change {
		var c machine.Change
		c.Path = path
		if appearance != 0 {
			c.Info = &cache.PluginInfo{SocketPath: path, Appearance: appearance, Socket: plugin.SocketID{Device: 1, Inode: appearance}}
		}
		return c
	}
	switch {
	case to != "":
		s.paths[to] = s.paths[at]
		delete(s.paths, at)
		return machine.Changed{change(at, 0), change(to, s.paths[to])}
	case d.HasArg("gone"):
		delete(s.paths, at)
		return machine.Changed{change(at, 0)}
	}
	s.appearances++
	s.paths[at] = s.appearances
	c := change(at, s.appearances)
	if d.HasArg("reuses") { // the inode number of another one
		d.ScanArgs(t, "reuses", &c.Info.Socket.Inode)
		c.Info.Socket.Birth = 1
	}
	return machine.Changed{c}
}

// failure is of a kind that its first word names, if it does.
func failure(text string) *machine.Failure {
	kinds := map[string]machine.FailureKind{"patience": machine.Patience, "silent": machine.Silent, "absent": machine.Absent,
		"distrusted": machine.Distrusted}
	if text == "" {
		return nil
	}
	return &machine.Failure{Err: errors.New(text), Kind: kinds[text]}
}

// report says what the last inputs led to, and the states after them.
func (s *script) report() string {
	var lines []string
	for _, effect := range s.out {
		lines = append(lines, s.describe(effect))
	}
	s.out = nil
	for _, p := range s.m.Plugins(func(plugin.Name) bool { return true }) {
		line := fmt.Sprintf("= %s %s/%s %s", p.SocketPath, p.Type, p.Name, p.State)
		if !p.NextRetry.IsZero() {
			line += " next in " + p.NextRetry.Sub(s.now).String()
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return "nothing\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

func (s *script) describe(effect machine.Effect) string {
	switch e := effect.(type) {
	case machine.Ask:
		s.asked[e.Ref] = e.Path
		return fmt.Sprintf("ask %d at %s", e.Ref, e.Path)
	case machine.Call:
		names := []string{"", "probe", "ValidatePlugin", "admit", "RegisterPlugin", "save", "tell", "keep?", "discard", "DeRegisterPlugin",
			"InstanceGone", "remove"}
		return fmt.Sprintf("call %s for %d, %s/%s at %s", names[e.Kind], e.Ref, e.Instance.Type, e.Instance.Name, e.Instance.Endpoint)
	case machine.Tell:
		return fmt.Sprintf("tell %d: %v", e.Ref, e.Reason)
	case machine.Emit:
		return fmt.Sprintf("event %s %s/%s: %s", e.Event.Kind, e.Event.Type, e.Event.Name, e.Event.Message)
	case machine.End:
		return fmt.Sprintf("end %d: %s", e.Ref, e.Result)
	case machine.SetTimer:
		return fmt.Sprintf("timer %s of %d in %v", timers[e.Timer.Kind], e.Timer.Ref, e.After)
	case machine.StopTimer:
		return fmt.Sprintf("stop timer %s of %d", timers[e.Timer.Kind], e.Timer.Ref)
	case machine.Begin:
		return fmt.Sprintf("begin %d", e.Ref)
	case machine.Hide:
		return fmt.Sprintf("hide %s: %v", e.ID, e.Reason)
	}
	return strings.ToLower(strings.ReplaceAll(fmt.Sprintf("%T %+v", effect, effect), "machine.", ""))
}
