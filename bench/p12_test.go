package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
)

// instanceID is that of all pins.
const instanceID = "ZmFrZS1pbnN0YW5jZS1vZi1hLXBhY2thZ2UtMDEyMzQ1AQ"

// benchP12 measures admission checks through one plugin: of new pins, with many pending at a time or one, and of a pin whose answer is
// kept.
func benchP12(b testing.TB) {
	rounds, many, single, cached := 10, 200_000, 2000, 5_000_000
	if small(b) {
		rounds, many, single, cached = 1, 2000, 20, 10_000
	}
	const pending = 10_000
	p := start(b, roleAdmissions, build(b, "plugins/admission"))
	p.call("Admissions.Check", Checks{N: many, Pending: pending}, new(Cost)) // warms up
	for range rounds {
		var c Cost
		p.call("Admissions.Check", Checks{N: many, Pending: pending}, &c)
		record(b, fmt.Sprintf("P12/pending=%d/host", pending), many, metrics{"checks/s", 1e9 / c.Nanoseconds})
		p.call("Admissions.Check", Checks{N: single, Pending: 1}, &c)
		record(b, "P12/pending=1/host", single, metrics{"check-µs", c.Nanoseconds / 1e3})
		p.call("Admissions.CheckKept", cached, &c)
		record(b, "P12/kept=1/host", cached, metrics{"check-ns", c.Nanoseconds, "allocs/check", c.Allocations})
	}
	p.stop()
}

// Admissions is a host with an admission plugin. Its methods are those of net/rpc.
type Admissions struct {
	host   *host.Host
	plugin plugin.AdmissionPlugin
	next   int // pin
	idle   []plugin.AdmissionPlugin
}

// serveAdmissions serves [Admissions] until standard input ends. The argument of the process is the program of the plugin.
func serveAdmissions(program string) error {
	h, err := newHost()
	if err != nil {
		return err
	}
	p, err := h.NewAdmissionPlugin([]string{program})
	if err != nil {
		return err
	}
	return errors.Join(proc.Serve(&Admissions{host: h, plugin: p}), closeHost(h))
}

// Checks are checks of pins that are new, of which so many are pending at the same time.
type Checks struct{ N, Pending int }

// Cost is what one check costs.
type Cost struct{ Nanoseconds, Allocations float64 }

// Check makes checks.
func (a *Admissions) Check(checks Checks, cost *Cost) error {
	ctx := context.Background()
	pins := make([]plugin.Pin, checks.N)
	for i := range pins {
		a.next++
		pins[i] = plugin.Pin{PackageName: fmt.Sprintf("infra/tools/patchbay/%d", a.next), InstanceID: instanceID}
	}
	pending := make([]plugin.Promise, checks.Pending)
	start := time.Now()
	for i, pin := range pins {
		slot := &pending[i%checks.Pending]
		if *slot != nil {
			if err := (*slot).Wait(ctx); err != nil {
				return err
			}
		}
		*slot = a.plugin.CheckAdmission(pin)
	}
	for _, promise := range pending[:min(checks.Pending, checks.N)] {
		if err := promise.Wait(ctx); err != nil {
			return err
		}
	}
	cost.Nanoseconds = float64(time.Since(start).Nanoseconds()) / float64(checks.N)
	return nil
}

// CheckKept makes n checks of one pin whose answer is kept.
func (a *Admissions) CheckKept(n int, cost *Cost) error {
	ctx := context.Background()
	pin := plugin.Pin{PackageName: "infra/tools/patchbay/kept", InstanceID: instanceID}
	if err := a.plugin.CheckAdmission(pin).Wait(ctx); err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for range n {
		if err := a.plugin.CheckAdmission(pin).Wait(ctx); err != nil {
			return err
		}
	}
	cost.Nanoseconds = float64(time.Since(start).Nanoseconds()) / float64(n)
	runtime.ReadMemStats(&after)
	cost.Allocations = float64(after.Mallocs-before.Mallocs) / float64(n)
	return nil
}

// Hold makes n handles to admission plugins that are not used, beside those that there are already.
func (a *Admissions) Hold(n int, _ *proc.None) error {
	for range n {
		p, err := a.host.NewAdmissionPlugin([]string{"/nowhere"})
		if err != nil {
			return err
		}
		a.idle = append(a.idle, p)
	}
	return nil
}

// Footprint says what the process holds.
func (a *Admissions) Footprint(_ proc.None, f *proc.Footprint) (err error) {
	*f, err = proc.ReadFootprint()
	return err
}
