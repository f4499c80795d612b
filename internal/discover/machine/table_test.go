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

This page is printed from the table of package ` + "`internal/discover/machine`" + `; ` + "`go test ./internal/discover/machine -update`" + `
writes it. A transition that is not here does not happen: the simulation fails that meets one, and each row is taken in it.

An instance is one appearance of a socket and the plugin behind it. That its handler has it, and that the registry does, are facts of their
own beside the phase: the lane of its type and name knows whom the handler has, and the registry's record whether it is given out. So one
that is registered and asked anew is in the phase of the attempt.

## The phases

| phase | what it means |
|---|---|
`)
	for p := Restored; p <= Gone; p++ {
		fmt.Fprintf(&b, "| %s | %s |\n", p, phaseMeanings[p])
	}
	b.WriteString("\n## The causes\n\n| cause | what has happened |\n|---|---|\n")
	for c := ByAppearance; c <= ByRival; c++ {
		fmt.Fprintf(&b, "| %s | %s |\n", c, causeMeanings[c])
	}
	b.WriteString("\n## The transitions\n\n| from | on | if | to |\n|---|---|---|---|\n")
	for _, row := range Table {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.From, row.On, row.If, row.To)
	}
	names := make([]string, len(Leaving))
	for i, c := range Leaving {
		names[i] = c.String()
	}
	fmt.Fprintf(&b, "\nFrom every phase an instance is gone, for good, on: %s.\n", strings.Join(names, ", "))
	return b.String()
}

var phaseMeanings = map[Phase]string{
	Restored:   "It is remembered from before a restart, and its socket has not been seen yet.",
	Asking:     "It waits to be asked who it is, or is being asked.",
	Ready:      "It has answered and waits for its turn in its lane.",
	Walking:    "Its lane walks it through its handler, the registry and the plugin itself.",
	Telling:    "It is being told that it is refused.",
	Waiting:    "Its last attempt failed, and the next one is due.",
	Refused:    "There is no handler for it. It rests until there is one.",
	Registered: "Its handler has it, the registry gives it out, and nothing is under way.",
	Superseded: "It has answered, and rests behind a newer instance or until it is asked again.",
	Missing:    "Its socket is not where it was, and it is not known yet whether it moved.",
	Lost:       "Nobody accepts on its socket or endpoint, and it is kept for a grace.",
	Gone:       "It never comes back. A socket that lives on gets a new instance.",
}

var causeMeanings = map[Cause]string{
	ByAppearance: "Its socket appeared.",
	ByMove:       "Its socket is in another place.",
	ByLoss:       "Its socket was removed, replaced or is not trusted any more, or it is another plugin now.",
	ByAnswer:     "It answered, or could not be asked.",
	ByTurn:       "Its lane has come to it.",
	ByResult:     "A call of its lane has returned.",
	ByDelivery:   "It was told of its refusal.",
	ByTimer:      "A timer of its own fired.",
	ByProbe:      "Nobody accepted a connection.",
	ByHandler:    "The handler for its type was set or removed.",
	ByOperator:   "Somebody asked for another attempt, or what judges plugins has changed.",
	ByRival:      "Another instance of its name left, or is out of reach.",
}

// InTable says whether the table has a transition.
func InTable(row Row) bool {
	return row.To == Gone && slices.Contains(Leaving, row.On) ||
		slices.ContainsFunc(Table, func(o Row) bool { return o.From == row.From && o.On == row.On && o.To == row.To })
}

// TestTable: the table stays within what can be read at once, and has each transition once.
func TestTable(t *testing.T) {
	if len(Table) > 60 || int(Gone) > 12 {
		t.Errorf("it has %d rows and %d phases", len(Table), Gone)
	}
	for i, row := range Table {
		if slices.ContainsFunc(Table[:i], func(o Row) bool { return o.From == row.From && o.On == row.On && o.To == row.To }) {
			t.Errorf("%s → %s, %s: it is there twice", row.From, row.To, row.On)
		}
		if row.To == Gone || row.To == row.From {
			t.Errorf("%s → %s, %s: it needs no row, or leads nowhere", row.From, row.To, row.On)
		}
	}
}
