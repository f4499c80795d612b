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
)

var update = flag.Bool("update", false, "write docs/reference/launched-states.md")

const statesPage = "../../../docs/reference/launched-states.md"

// TestStatesPage: docs/reference/launched-states.md is printed from the table.
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

This page is printed from the table of package ` + "`internal/launch/machine`" + `; ` + "`go test ./internal/launch/machine -update`" + `
writes it. A transition that is not here does not happen: the simulation fails that meets one, and each row is taken in it.

What has a phase is a *generation* of a plugin: a row of processes, from a start or a replacement by hand to the stop. A plugin has one, a
second one while that is to replace it, and others that are being ended. Admission plugins run in the same machine; they are started when
somebody needs them.

## The phases

| phase | what it means | shown as |
|---|---|---|
`)
	for p := Wanted; p <= Over; p++ {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", p, phaseMeanings[p], (&generation{phase: p}).state())
	}
	b.WriteString("\nOne that is ready or serves, and does not answer health checks, is shown as unresponsive.\n\n" +
		"## The causes\n\n| cause | what has happened |\n|---|---|\n")
	for c := ByStart; c <= BySocketLoss; c++ {
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
	Wanted:     "It is to run, and waits for the end of what ran before it.",
	Starting:   "Its program is being checked and started.",
	Started:    "Its process runs and is not ready yet.",
	Adopted:    "The same, with a process that survived an earlier host.",
	Ready:      "It does not serve, and has run for a moment.",
	Serving:    "It serves, and is registered.",
	Lost:       "It serves, and somebody removed its socket: another process is to take its place.",
	Failing:    "It is not fit to go on, and is being ended to be started again.",
	Replaced:   "A newer one has taken its place, and it is being ended.",
	Stopping:   "It is being ended and does not come back.",
	BackingOff: "Its process has ended, and the next one is due.",
	GivenUp:    "Its processes have ended too often. It rests until somebody starts it.",
	Surviving:  "Its host has ended and let it go on.",
	Over:       "Nothing of it runs, and nothing will.",
}

var causeMeanings = map[Cause]string{
	ByStart:       "It was started, by a person or because the catalogue says so.",
	ByDemand:      "Somebody needs it: there are checks for an admission plugin.",
	ByRestart:     "Somebody asked for another process, or it is configured otherwise.",
	ByStop:        "It was stopped, or is not to be launched any more.",
	ByClose:       "Its host ends.",
	BySurvivor:    "A process was reached that survived an earlier host.",
	ByTurn:        "What ran before it has ended.",
	ByLaunch:      "Its process runs, or could not be started.",
	ByReadiness:   "It was registered.",
	ByReplacement: "The newer one is ready, or did not become so.",
	ByExit:        "Its process has ended, with all that it had started.",
	ByTimer:       "A timer of its own fired.",
	ByUnfitness:   "It does not answer, or not as it must.",
	BySocketLoss:  "Its socket was removed while it serves.",
}

// TestTable: the table stays within what can be read at once, and has each transition once.
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

// TestPauses: they stay within their bounds, and differ.
func TestPauses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			MinBackoff: time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "min")), MaxBackoff: time.Duration(rapid.Int64Range(0, 1<<62).Draw(t, "max")),
		}.withDefaults()
		n := rapid.IntRange(1, 1000).Draw(t, "n")
		pause := p.pause(n, rapid.Float64Range(0, 0.999).Draw(t, "chance"))
		if pause < p.MinBackoff || pause > p.MaxBackoff {
			t.Fatalf("%v after %d with %+v", pause, n, p)
		}
	})
	seen := map[time.Duration]bool{}
	for i := range 100 {
		seen[Policy{}.withDefaults().pause(20, float64(i)/100)] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d pauses of 100 differ", len(seen))
	}
}
