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

// TestAlike: of many that need the same, the first are shown, and how many more there are; each remedy is one that helps.
func TestAlike(t *testing.T) {
	var plugins []*patchbayv1.Plugin
	soon := timestamppb.New(time.Now().Add(time.Minute))
	for i := range 10 {
		socket := fmt.Sprintf("/run/%d.sock", i)
		plugins = append(plugins,
			&patchbayv1.Plugin{Type: "Theirs", Name: fmt.Sprint("a", i), State: "refused", SocketPath: socket, LastError: "no handler: " + socket},
			&patchbayv1.Plugin{Type: "T", Name: fmt.Sprint("b", i), State: "refused", SocketPath: socket, LastError: "not admitted", NextRetry: soon})
	}
	plugins = append(plugins, &patchbayv1.Plugin{Type: "T", Name: "c", State: "refused", LastError: "another reason", NextRetry: soon})
	var text bytes.Buffer
	if err := writeNeeds(&text, pluginsInNeed(plugins, time.Now()), time.Now()); err != nil {
		t.Fatal(err)
	}
	for want, count := range map[string]int{
		"Theirs/a": 3, "T/b": 3, "T/c": 1, "… and 7 more for the same reason; -o json shows all": 2,
		"→ configure a handler for its type: handlers in the configuration, or --accept-type Theirs": 1,
		"→ fix the cause; the plugin is retried automatically":                                       2,
	} {
		if n := strings.Count(text.String(), want); n != count {
			t.Errorf("%q is there %d times, want %d:\n%s", want, n, count, &text)
		}
	}
}
