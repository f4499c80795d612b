package admission

import (
	"context"
	"testing"
	"testing/synctest"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestSlowCheckDelaysNoOther: checks that come one by one, and all at once, are answered beside those that hang.
func TestSlowCheckDelaysNoOther(t *testing.T) {
	for _, batch := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 4
			release, answered := make(chan struct{}), map[uint64]bool{}
			check := func(_ context.Context, pin plugin.Pin, _ Metadata) error {
				if pin.PackageName == "hangs" {
					<-release
				}
				return nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			p := newPool(ctx, check, limit, func(r *pluginv1.AdmitRequest) error {
				for _, a := range r.GetResolutions() {
					answered[a.GetId()] = true
				}
				return nil
			})
			id := uint64(0)
			add := func(name string, n int) {
				var all []*pluginv1.Admission
				for range n {
					id++
					all = append(all, &pluginv1.Admission{Id: id, Pin: &pluginv1.Pin{PackageName: name}})
				}
				if err := p.add(ctx, all); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			for hanging := range limit - 1 {
				add("hangs", 1)
				for range 3 {
					before := len(answered)
					add("quick", batch)
					if len(answered) != before+batch {
						t.Errorf("beside %d that hang, %d of %d were answered", hanging+1, len(answered)-before, batch)
					}
				}
			}
			close(release)
			synctest.Wait()
			cancel()
			p.wait()
			if p.workers > limit || len(answered) != int(id) {
				t.Errorf("%d workers for %d, %d of %d checks were answered", p.workers, limit, len(answered), id)
			}
		})
	}
}
