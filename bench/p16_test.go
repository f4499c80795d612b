package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	library "github.com/hashicorp/go-plugin"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// upgrading is a contestant of benchP16.
type upgrading struct {
	name    string
	replace bool
	how     plugin.Upgrade
	program string
	// protocol makes the plugin one of go-plugin.
	protocol *goplugin.Protocol
}

// benchP16 measures the calls of 64 callers, who never pause, in the second around an upgrade of their plugin, beside those of a second
// without one.
func benchP16(b testing.TB) {
	rounds, callers, window := 12, 64, time.Second
	if small(b) {
		rounds, callers, window = 1, 4, 50*time.Millisecond
	}
	ours, theirs := build(b, pluginOf["launcher"]), build(b, pluginOf[goPlugin])
	cookie := library.HandshakeConfig{MagicCookieKey: "PATCHBAY_BENCH_COOKIE", MagicCookieValue: "bench"}
	foreign := &goplugin.Protocol{
		Type: launchedType, Name: upgraded, ProtocolVersions: []int{1}, Connections: new(goplugin.Connections),
		Config: &library.ClientConfig{HandshakeConfig: cookie},
	}
	contestants := []upgrading{
		{name: "steady", program: ours},
		{name: "side-by-side", replace: true, program: ours},
		{name: "handover", replace: true, how: plugin.UpgradeHandover, program: ours},
		{name: "recreate", replace: true, how: plugin.UpgradeRecreate, program: ours},
		{name: "steady-goplugin", program: theirs, protocol: foreign},
		{name: "side-by-side-goplugin", replace: true, program: theirs, protocol: foreign},
		{name: "handover-goplugin", replace: true, how: plugin.UpgradeHandover, program: theirs, protocol: foreign},
		{name: "recreate-goplugin", replace: true, how: plugin.UpgradeRecreate, program: theirs, protocol: foreign},
	}
	for round := range rounds {
		for i := range contestants {
			u := contestants[(i+round)%len(contestants)] // each begins as often
			latencies, failed := upgradeUnderLoad(b, u, callers, window)
			if round > 0 || rounds == 1 {
				record(b, fmt.Sprintf("P16/callers=%d/%s", callers, u.name), len(latencies), metrics{
					"call-µs", quantile(latencies, 0.5), "call-p99-µs", quantile(latencies, 0.99), "call-max-µs", quantile(latencies, 1),
					"failed", float64(failed),
				})
			}
		}
	}
}

// upgraded is the name of the plugin.
const upgraded = "upgraded"

// upgradeUnderLoad launches a plugin, and calls it for a while in the middle of which it is replaced. It returns how long each call took, in
// microseconds, and how many failed.
func upgradeUnderLoad(b testing.TB, u upgrading, callers int, window time.Duration) (latencies []float64, failed int64) {
	b.Helper()
	launched := launcher.Plugin{Spec: host.Spec{Name: upgraded, Args: []string{u.program, upgraded}}, Upgrade: u.how}
	var options []dynamicplugins.Option
	if u.protocol != nil {
		launched.Protocol = u.protocol
		options = append(options, dynamicplugins.WithConnections(u.protocol.Connections))
	}
	opened, err := openLauncher(false, options...)(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	h, _ := opened.(*launcherHost)
	defer func() {
		if err := h.Close(); err != nil {
			b.Error(err)
		}
	}()
	if err := h.rt.Launcher().Set([]launcher.Plugin{launched}); err != nil {
		b.Fatal(err)
	}
	if _, err := h.rt.Registry().WaitForPlugin(b.Context(), launchedType, upgraded); err != nil {
		b.Fatal(err)
	}
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](h.rt.Registry(), launchedType, upgraded)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var calling sync.WaitGroup
	var lost atomic.Int64
	each := make([][]float64, callers)
	begin := time.Now()
	for i := range each {
		calling.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if err := call(b.Context(), client); err != nil && lost.Add(1) == 1 {
					b.Logf("a call failed %v after the begin: %v", time.Since(begin), err)
				}
				each[i] = append(each[i], float64(time.Since(began).Nanoseconds())/1e3)
			}
		})
	}
	time.Sleep(window / 2)
	if u.replace {
		if err := h.rt.Launcher().Restart(b.Context(), upgraded); err != nil {
			b.Error(err)
		}
	}
	time.Sleep(time.Until(begin.Add(window)))
	cancel()
	calling.Wait()
	for _, some := range each {
		latencies = append(latencies, some...)
	}
	return latencies, lost.Load()
}
