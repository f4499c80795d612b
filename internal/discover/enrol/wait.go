package enrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Name names one plugin.
type Name struct{ Type, Name string }

func (n Name) String() string { return n.Type + "/" + n.Name }

// Await blocks until every one of the plugins is registered and known to live. The error names each that was missing when ctx ended, with
// its state in the listing of plugins, newest first, and wraps ctx.Err().
func Await(ctx context.Context, store *dynamicplugins.Store, names []Name, plugins func() []reconciler.Status) error {
	missing := make([]error, len(names))
	var waiting sync.WaitGroup
	for i, n := range names {
		waiting.Go(func() {
			_, missing[i] = store.WaitForConfirmedPlugin(ctx, n.Type, n.Name)
		})
	}
	waiting.Wait()
	if errors.Join(missing...) == nil {
		return nil
	}
	newest := map[Name]reconciler.Status{}
	for _, s := range slices.Backward(plugins()) {
		newest[Name{s.Type, s.Name}] = s
	}
	for i, n := range names {
		if err := missing[i]; err != nil {
			missing[i] = fmt.Errorf("plugin %s is not registered%s: %w", n, stateOf(newest[n]), cmp.Or(ctx.Err(), err))
		}
	}
	return errors.Join(missing...)
}

// stateOf describes the state of a plugin, if one is known.
func stateOf(s reconciler.Status) string {
	switch {
	case s.State == "":
		return ""
	case s.LastError != "":
		return fmt.Sprintf(" (it is %s: %s)", s.State, s.LastError)
	}
	return fmt.Sprintf(" (it is %s)", s.State)
}
