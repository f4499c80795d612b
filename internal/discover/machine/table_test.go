package machine

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/states.md")

const statesPage = "../../../docs/reference/states.md"

// TestStatesPage: docs/reference/states.md is printed from the table.
func TestStatesPage(t *testing.T) {
	page := states()
	if *update {
		if err := os.WriteFile(statesPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(statesPage)
	if err != nil || string(written) != page {
		t.Errorf("%s is not what the table says (%v); write it with: go test ./internal/discover/machine -update", statesPage, err)
	}
}

func states() string {
	var b strings.Builder
	b.WriteString(`# The states of an instance

This page is generated from the table in ` + "`internal/discover/machine`" + ` by ` + "`go test ./internal/discover/machine -update`" + `.
No other transition happens: the simulation fails if it meets one, and takes every row of the table.

An instance is one appearance of a socket and the plugin behind it. The phase does not say whether its handler and the registry have it: the lane
of its type and name knows which instance the handler has, and the registry's record says whether it is dispensed. So a registered instance
that is asked again is in the phase of that attempt.

## The phases

| phase | what it means |
|---|---|
`)
	for _, p := range phases {
		fmt.Fprintf(&b, "| %s | %s |\n", p, phaseMeanings[p])
	}
	b.WriteString("\n## The causes\n\n| cause | what has happened |\n|---|---|\n")
	for _, c := range causes {
		fmt.Fprintf(&b, "| %s | %s |\n", c, causeMeanings[c])
	}
	b.WriteString("\n## The transitions\n\n| from | on | if | to |\n|---|---|---|---|\n")
	for _, row := range Table {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.From, row.On, row.If, row.To)
	}
	names := make([]string, len(Leaving))
	for i, c := range Leaving {
		names[i] = string(c)
	}
	fmt.Fprintf(&b, "\nIn every phase, an instance can be gone for good on: %s.\n", strings.Join(names, ", "))
	return b.String()
}

var phases = []Phase{
	Restored, Asking, Ready, Walking, Telling, Waiting, Refused, Registered, Superseded, Missing, Lost, Gone,
}

var causes = []Cause{
	ByAppearance, ByMove, ByLoss, ByAnswer, ByTurn, ByResult, ByDelivery, ByTimer, ByProbe, ByHandler, ByOperator, ByRival,
}

var phaseMeanings = map[Phase]string{
	Restored:   "It was restored after a restart, and its socket has not been seen yet.",
	Asking:     "It waits to be asked who it is, or is being asked.",
	Ready:      "It has answered and waits for its lane.",
	Walking:    "Its lane registers it: with its handler, in the registry, and with the plugin itself.",
	Telling:    "It is being sent a refusal.",
	Waiting:    "Its last attempt failed, and another is scheduled.",
	Refused:    "There is no handler for its type. It waits until there is one.",
	Registered: "Its handler has it, the registry dispenses it, and no attempt is in progress.",
	Superseded: "It has answered, and is the standby of a newer instance or waits to be asked again.",
	Missing:    "Its socket is not where it was; it may have moved.",
	Lost:       "Nobody accepts on its socket or endpoint, and its grace period runs.",
	Gone:       "It never comes back. A socket that still exists gets a new instance.",
}

var causeMeanings = map[Cause]string{
	ByAppearance: "Its socket appeared.",
	ByMove:       "Its socket moved.",
	ByLoss:       "Its socket was removed, replaced or is no longer trusted, or another plugin answers on it.",
	ByAnswer:     "It answered, or could not be asked.",
	ByTurn:       "Its lane is ready for it.",
	ByResult:     "A call by its lane has returned.",
	ByDelivery:   "It has received its refusal.",
	ByTimer:      "Its timer fired.",
	ByProbe:      "Nobody accepted a connection.",
	ByHandler:    "The handler for its type was set or removed.",
	ByOperator:   "Somebody asked for another attempt, or the configuration was reloaded.",
	ByRival:      "Another instance of its name went away or became unreachable.",
}

// InTable says whether the table has a transition.
func InTable(row Row) bool {
	return row.To == Gone && slices.Contains(Leaving, row.On) ||
		slices.ContainsFunc(Table, func(o Row) bool { return o.From == row.From && o.On == row.On && o.To == row.To })
}

// TestTable: the table stays within what can be read at once, and has each transition once.
func TestTable(t *testing.T) {
	if len(Table) > 60 || len(phases) > 12 || len(phases) != len(phaseMeanings) || len(causes) != len(causeMeanings) {
		t.Errorf("it has %d rows and %d phases", len(Table), len(phases))
	}
	for i, row := range Table {
		if row.From != Created && !slices.Contains(phases, row.From) || !slices.Contains(phases, row.To) || !slices.Contains(causes, row.On) {
			t.Errorf("%s → %s, %s: a phase or cause is not in the page", row.From, row.To, row.On)
		}
		if slices.ContainsFunc(Table[:i], func(o Row) bool { return o.From == row.From && o.On == row.On && o.To == row.To }) {
			t.Errorf("%s → %s, %s: it is there twice", row.From, row.To, row.On)
		}
		if row.To == Gone || row.To == row.From {
			t.Errorf("%s → %s, %s: it needs no row, or leads nowhere", row.From, row.To, row.On)
		}
	}
}
