//go:build unix

package host

import (
	"context"
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// BenchmarkCachedCheck is the first half of row P12: a check whose answer is kept.
func BenchmarkCachedCheck(b *testing.B) {
	a, _ := newAdmissionOf(b, "admit all", 0)
	p := plugin.Pin{PackageName: "infra/tools/patchbay/linux-amd64", InstanceID: "ZmFrZS1pbnN0YW5jZS1vZi1hLXBhY2thZ2UtMDEyMzQ1AQ"}
	ctx := b.Context()
	if err := a.CheckAdmission(p).Wait(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := a.CheckAdmission(p).Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAdmissions is the second half of row P12: checks of new pins through one plugin. Up to 10,000 are pending.
func BenchmarkAdmissions(b *testing.B) {
	a, _ := newAdmissionOf(b, "admit all", 0)
	benchmarkAdmissions(b, a)
}

// BenchmarkCIPDAdmissions is the same over the wire of CIPD, on which each answer is a call.
func BenchmarkCIPDAdmissions(b *testing.B) {
	a, _ := newCIPDAdmission(b, "cipd all", 0)
	benchmarkAdmissions(b, a)
}

func benchmarkAdmissions(b *testing.B, a *AdmissionPlugin) {
	ctx := context.Background()
	if err := a.CheckAdmission(filePin("first")).Wait(ctx); err != nil {
		b.Fatal(err)
	}
	instance := filePin("first").InstanceID
	pins := make([]plugin.Pin, b.N)
	for i := range pins {
		pins[i] = plugin.Pin{PackageName: fmt.Sprintf("infra/tools/patchbay/%d", i), InstanceID: instance}
	}
	const window = 10000
	pending := make([]plugin.Promise, window)
	b.ReportAllocs()
	b.ResetTimer()
	for i, p := range pins {
		if old := pending[i%window]; old != nil {
			if err := old.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
		pending[i%window] = a.CheckAdmission(p)
	}
	for _, promise := range pending {
		if promise == nil {
			continue
		}
		if err := promise.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "checks/s")
}

// BenchmarkAdmission is one check at a time.
func BenchmarkAdmission(b *testing.B) {
	a, _ := newAdmissionOf(b, "admit all", 0)
	ctx := b.Context()
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		if err := a.CheckAdmission(plugin.Pin{PackageName: fmt.Sprint(n), InstanceID: "i"}).Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLaunch is row P10: from the launch of a plugin to its first call.
func BenchmarkLaunch(b *testing.B) {
	calls := make(chan struct{})
	h := &Host{}
	if err := h.Initialize(plugin.Config{Repository: calling(calls)}); err != nil {
		b.Fatal(err)
	}
	defer h.Close(context.Background())
	spec := self("one call")
	for b.Loop() {
		p := launch(b, h, spec)
		<-calls
		b.StopTimer()
		done(b, p)
		b.StartTimer()
	}
}

// calling is a repository that says when it is called.
type calling chan<- struct{}

func (c calling) ListMetadata(context.Context, plugin.Pin, []string, plugin.Page) ([]plugin.Metadata, string, error) {
	c <- struct{}{}
	return nil, "", nil
}
