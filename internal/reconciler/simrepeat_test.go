package reconciler_test

import (
	"strings"
	"testing"
)

// TestSameSeedSameTrace: a scenario is repeated byte for byte: inputs, effects, calls, writes and events.
func TestSameSeedSameTrace(t *testing.T) {
	for seed := range uint64(repeated) {
		var once, again strings.Builder
		simulate(draw(seed), newFigures(), written(&once))
		simulate(draw(seed), newFigures(), written(&again))
		if once.String() == again.String() {
			continue
		}
		first, second := strings.Split(once.String(), "\n"), strings.Split(again.String(), "\n")
		for i, line := range first {
			if i >= len(second) || line != second[i] {
				t.Fatalf("seed %d: line %d is\n%s\nand then\n%s", seed, i, line, second[min(i, len(second)-1)])
			}
		}
		t.Fatalf("seed %d: it goes on with\n%s", seed, second[len(first)])
	}
}

// TestScriptIsReadAsWritten: what a failure prints can be pasted.
func TestScriptIsReadAsWritten(t *testing.T) {
	for seed := range uint64(100) {
		s := draw(seed)
		read, err := parseScript(s.String())
		if err != nil || read.String() != s.String() {
			t.Fatalf("%v\n%v\n%v", err, s, read)
		}
	}
}

// TestNeighbours reproduces PAINS 48: without a look at what is dialled, a plugin is taken for its neighbour when sockets change places.
func TestNeighbours(t *testing.T) {
	const few = 3_000
	_, failed := campaign(1, few, func(m *model) { m.blind = true })
	if len(failed) == 0 {
		t.Errorf("none of %d scenarios fails whose transport does not look which socket it has reached", few)
	}
}
