package machine

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/plugin"
)

var update = flag.Bool("update", false, "write docs/reference/launched-states.md")

const statesPage = "../../../docs/reference/launched-states.md"

// TestStatesPage: docs/reference/launched-states.md is generated from the table.
func TestStatesPage(t *testing.T) {
	page := states()
	if *update {
		if err := os.WriteFile(statesPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(statesPage)
	if err != nil || string(written) != page {
		t.Errorf("%s is not what the table says (%v); write it with: go test ./internal/launch/machine -update", statesPage, err)
	}
}

func states() string {
	var b strings.Builder
	b.WriteString(`# The states of a launched plugin

This page is generated from the table in ` + "`internal/launch/machine`" + ` by ` + "`go test ./internal/launch/machine -update`" + `.
No other transition happens: the simulation fails if it meets one, and takes every row of the table.

The table is about a *generation* of a plugin: its successive processes, from a start or a replacement by hand to the stop. A plugin has one
generation, a second while that is to replace the first, and others that are being stopped. Admission plugins use the same table; they are started
on demand.

## The phases

| phase | what it means | shown as |
|---|---|---|
`)
	for p := Wanted; p <= Over; p++ {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", p, phaseMeanings[p], (&generation{phase: p}).state())
	}
	b.WriteString("\nA ready or serving one that does not answer health checks is shown as unresponsive.\n\n" +
		"## The causes\n\n| cause | what has happened |\n|---|---|\n")
	for c := ByStart; c <= ByChange; c++ {
		fmt.Fprintf(&b, "| %s | %s |\n", c, causeMeanings[c])
	}
	b.WriteString("\n## The transitions\n\n| from | on | if | to |\n|---|---|---|---|\n")
	for _, row := range Table {
		from := []string{Phase(0).String()}
		if row.From != nil {
			from = nil
			for _, p := range row.From {
				from = append(from, p.String())
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.Join(from, ", "), row.On, row.If, row.To)
	}
	return b.String()
}

var phaseMeanings = map[Phase]string{
	Wanted:     "It waits for the end of what ran before it.",
	Starting:   "Its program is being checked and started.",
	Started:    "Its process runs and is not ready yet.",
	Adopted:    "The same, for a process that survived an earlier host.",
	Ready:      "It does not serve, and has run for a moment.",
	Serving:    "It serves, and is registered.",
	Lost:       "It serves, and somebody removed its socket: another process will replace it.",
	Failing:    "It is unfit, and is being stopped for a restart.",
	Replaced:   "A newer one has replaced it, and it is being stopped.",
	Stopping:   "It is being stopped for good.",
	BackingOff: "Its process has ended or could not be started, and the next start is scheduled.",
	GivenUp:    "Its processes have ended too often. It waits until somebody starts it.",
	Blocked:    "It cannot be started before its program changes, or registered before its type has a handler; then it is started.",
	Idle:       "It has no process, and is started when somebody needs it.",
	Surviving:  "Its host has ended and left it running.",
	Over:       "Nothing of it runs or will run.",
}

var causeMeanings = map[Cause]string{
	ByStart:       "It was started, by a person or because the catalogue says so.",
	ByDemand:      "Somebody needs it: a caller, or a check for an admission plugin.",
	ByRestart:     "Somebody asked for another process, or its configuration changed.",
	ByStop:        "It was stopped, or is no longer in the catalogue.",
	ByClose:       "Its host ends.",
	BySurvivor:    "A process that survived an earlier host was found.",
	ByTurn:        "What ran before it has ended.",
	ByLaunch:      "Its process runs, or could not be started.",
	ByReadiness:   "It was registered.",
	ByReplacement: "The newer one is ready, or did not become ready.",
	ByExit:        "Its process has ended, with everything it had started.",
	ByTimer:       "Its timer fired.",
	ByUnfitness:   "It does not answer, breaks its protocol, or is not ready within `startTimeout`.",
	BySocketLoss:  "Its socket was removed while it serves.",
	ByOffer:       "It is to wait until somebody needs it.",
	ByIdleness:    "Nobody has needed it for as long as its `idle` says.",
	ByChange:      "Its program has changed, or its type has a handler.",
}

// TestTable: the table stays small enough to read, and has each transition once.
func TestTable(t *testing.T) {
	if len(Table) > 40 {
		t.Errorf("it has %d rows", len(Table))
	}
	for _, transition := range transitions() {
		if n := countRows(transition); n != 1 {
			t.Errorf("%s → %s, %s: it is there %d times", transition.From, transition.To, transition.On, n)
		}
	}
}

func transitions() (all []Transition) {
	for _, row := range Table {
		from := row.From
		if from == nil {
			from = []Phase{0}
		}
		for _, p := range from {
			all = append(all, Transition{p, row.On, row.To})
		}
	}
	return all
}

func countRows(t Transition) int {
	return len(slices.DeleteFunc(slices.Clone(Table), func(row Row) bool { return !row.Has(t) }))
}

// TestPauses: pauses stay within their bounds, and differ.
func TestPauses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Description{Restart: plugin.RestartPolicy{Backoff: plugin.Backoff{
			Min: time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "min")), Max: time.Duration(rapid.Int64Range(0, 1<<62).Draw(t, "max")),
		}}}.WithDefaults()
		bounds := d.Restart.Backoff
		n := rapid.IntRange(1, 1000).Draw(t, "n")
		pause := d.pause(n, rapid.Float64Range(0, 0.999).Draw(t, "chance"))
		if pause < bounds.Min || pause > bounds.Max {
			t.Fatalf("%v after %d with %+v", pause, n, bounds)
		}
	})
	seen := map[time.Duration]bool{}
	for i := range 100 {
		seen[Description{}.WithDefaults().pause(20, float64(i)/100)] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d pauses of 100 differ", len(seen))
	}
}

// TestNeverReady: a process that was never ready is not healthy, however long it has run.
func TestNeverReady(t *testing.T) {
	d := Description{Healthy: time.Millisecond, Restart: plugin.RestartPolicy{Limit: 2, Window: time.Millisecond}}.WithDefaults()
	var h history
	now := time.Now()
	for n := 1; n <= 3; n++ {
		g := &generation{begun: now}
		now = now.Add(time.Hour)
		if _, tooMany := h.ended(d, Moment{Now: now}, g.lasted(now)); (tooMany != "") != (n > 2) {
			t.Errorf("after %d processes: %q", n, tooMany)
		}
	}
}
