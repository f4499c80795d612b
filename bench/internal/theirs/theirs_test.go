package theirs

import (
	"maps"
	"strings"
	"testing"
)

// TestResults checks that a test that never starts, because another one ends the program, has a result that is not "pass".
func TestResults(t *testing.T) {
	c := newSources(t)
	c.files["a_test.go"] = []byte(`package a

import (
	"os"
	"testing"
)

func TestFails(t *testing.T)  { t.Run("part", func(t *testing.T) { t.Error("a reason") }) }
func TestPasses(*testing.T)   {}
func TestExits(*testing.T)    { os.Exit(1) }
func TestIsMissed(*testing.T) {}
`)
	c.write(t)
	if err := c.compile(t); err != nil {
		t.Fatalf("%v\n%s", err, c.printed)
	}
	results := map[string]string{}
	c.test(t, results)
	want := map[string]string{"TestFails": "fail", "TestPasses": "pass", "TestExits": "fail", "TestIsMissed": "does not start"}
	if !maps.Equal(results, want) {
		t.Errorf("results %v, want %v\n%s", results, want, c.printed)
	}
	if !strings.Contains(c.prints["TestFails"], "a reason") || strings.Contains(c.prints["TestPasses"], "a reason") {
		t.Errorf("the tests print %q", c.prints)
	}
}
