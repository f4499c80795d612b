package pluginruntime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestAwaitLists checks that the plugins are listed once, however many are missing.
func TestAwaitLists(t *testing.T) {
	store, err := dynamicplugins.Open(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Shutdown()
	names := make([]plugin.Name, 100)
	for i := range names {
		names[i] = plugin.Name{Type: "T", Name: fmt.Sprint(i)}
	}
	listings := make(chan struct{}, len(names))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = awaitPlugins(ctx, store, names, func() []plugin.Status {
		listings <- struct{}{}
		return []plugin.Status{{Type: "T", Name: "7", State: "refused", LastError: "newest"}, {Type: "T", Name: "7", State: "failed"}}
	})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "plugin T/7 is not registered (it is refused: newest)") {
		t.Errorf("the error is %v", err)
	}
	if len(listings) != 1 {
		t.Errorf("%d listings were made", len(listings))
	}
}
