package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// TestAlike: of many plugins with the same problem, the first are shown with one remedy, and how many more there are. A launched plugin with
// several instances counts once.
func TestAlike(t *testing.T) {
	health := func(reason, remedy string) *patchbayv1.Health {
		return &patchbayv1.Health{State: "attention", Since: timestamppb.Now(), Reason: reason, Remedy: remedy}
	}
	var plugins []*patchbayv1.Plugin
	for i := range 10 {
		socket := fmt.Sprintf("/run/%d.sock", i)
		plugins = append(plugins,
			&patchbayv1.Plugin{Type: "Theirs", Name: fmt.Sprint("a", i), State: "refused", SocketPath: socket, Health: health("no handler: "+socket, "configure one")},
			&patchbayv1.Plugin{Type: "T", Name: fmt.Sprint("b", i), State: "refused", SocketPath: socket, Health: health("not admitted", "fix the cause")},
			&patchbayv1.Plugin{Type: "T", Name: "well", State: "registered", Health: &patchbayv1.Health{State: "healthy"}})
	}
	plugins = append(plugins, &patchbayv1.Plugin{Type: "T", Name: "c", State: "refused", Health: health("another reason", "fix the cause")})
	for range 2 {
		plugins = append(plugins, &patchbayv1.Plugin{Type: "T", Name: "d", LaunchedAs: "disk", State: "registered", Health: health("exit status 3", "read its log")})
	}
	var text bytes.Buffer
	needs, _ := pluginsInNeed(plugins)
	if err := writeNeeds(&text, needs, time.Now()); err != nil {
		t.Fatal(err)
	}
	for want, count := range map[string]int{
		"Theirs/a": 3, "T/b": 3, "T/c": 1, "T/d": 1, "T/well": 0, "… and 7 more for the same reason; -o json shows all": 2,
		"→ configure one": 1, "→ fix the cause": 2, "→ read its log (patchbay logs disk, patchbay restart disk)": 1,
	} {
		if n := strings.Count(text.String(), want); n != count {
			t.Errorf("%q is there %d times, want %d:\n%s", want, n, count, &text)
		}
	}
}
