package enrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Name names one plugin.
type Name struct{ Type, Name string }

func (n Name) String() string { return n.Type + "/" + n.Name }

// Await blocks until every one of the plugins is registered and known to live. The error names each that was missing when ctx ended, with
// what plugins tells of it then, and wraps ctx.Err().
func Await(ctx context.Context, store *dynamicplugins.Store, names []Name, plugins func() []reconciler.Status) error {
	missing := make([]error, len(names))
	var waiting sync.WaitGroup
	for i, n := range names {
		waiting.Go(func() {
			if _, err := store.WaitForConfirmedPlugin(ctx, n.Type, n.Name); err != nil {
				missing[i] = fmt.Errorf("plugin %s is not registered%s: %w", n, stateOf(n, plugins()), cmp.Or(ctx.Err(), err))
			}
		})
	}
	waiting.Wait()
	return errors.Join(missing...)
}

// stateOf says in which state the newest instance of a plugin is, if there is one.
func stateOf(n Name, plugins []reconciler.Status) string {
	for _, s := range plugins {
		switch {
		case s.Type != n.Type || s.Name != n.Name:
		case s.LastError != "":
			return fmt.Sprintf(" (it is %s: %s)", s.State, s.LastError)
		default:
			return fmt.Sprintf(" (it is %s)", s.State)
		}
	}
	return ""
}
