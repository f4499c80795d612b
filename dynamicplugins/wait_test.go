package dynamicplugins_test

import (
	"testing"
	"testing/synctest"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// A restored instance ends WaitForPlugin, and ends WaitForConfirmedPlugin when it is confirmed.
func TestWaitForConfirmedPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		before := open(t, store, nil)
		register(t, before, newInfo("t", "n", "1"))
		before.Shutdown()

		r := open(t, store, nil)
		if _, err := r.WaitForPlugin(t.Context(), "t", "n"); err != nil {
			t.Error(err)
		}
		found := make(chan *dynamicplugins.PluginInfo, 1)
		go func() {
			p, err := r.WaitForConfirmedPlugin(t.Context(), "t", "n")
			if err != nil {
				t.Error(err)
			}
			found <- p
		}()
		synctest.Wait()
		if len(found) > 0 {
			t.Error("WaitForConfirmedPlugin returned a restored instance")
		}
		check(t, r.ConfirmPlugin("t", "n", "1"))
		if p := <-found; p == nil || p.AllocID != "1" {
			t.Errorf("found %v", p)
		}
	})
}
