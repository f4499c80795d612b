package dynamicplugins_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

func benchInfo(ptype string, i int) *dynamicplugins.PluginInfo {
	return &dynamicplugins.PluginInfo{
		Type: ptype, Name: fmt.Sprintf("driver-%06d.csi.example.com", i), AllocID: "1",
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/x.sock"},
	}
}

// BenchmarkDispense is row P8, at 10,000 registered; run it with -cpu 1,2. The floor is a lookup in a map behind an atomic pointer.
func BenchmarkDispense(b *testing.B) {
	const registered = 10_000
	var client any = new(int)
	r := dynamicplugins.NewRegistry(nil, map[string]dynamicplugins.PluginDispenser{
		"csi-node": func(*dynamicplugins.PluginInfo) (any, error) { return client, nil },
	})
	defer r.Shutdown()
	type key struct{ ptype, name string }
	floor := make(map[key]*dynamicplugins.PluginInfo)
	for i := range registered {
		info := benchInfo("csi-node", i)
		floor[key{info.Type, info.Name}] = info
		if err := r.RegisterPlugin(info); err != nil {
			b.Fatal(err)
		}
	}
	name := benchInfo("csi-node", registered/2).Name
	b.Run("floor", func(b *testing.B) {
		var snapshot atomic.Pointer[map[key]*dynamicplugins.PluginInfo]
		snapshot.Store(&floor)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if (*snapshot.Load())[key{"csi-node", name}] == nil {
					b.Error("not found")
				}
			}
		})
	})
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if c, err := r.DispensePlugin("csi-node", name); err != nil || c != client {
					b.Error(err)
				}
			}
		})
	})
}

// BenchmarkWait is the first half of row P9: from RegisterPlugin to the return of WaitForPlugin.
func BenchmarkWait(b *testing.B) {
	r := dynamicplugins.NewRegistry(nil, nil)
	defer r.Shutdown()
	var total time.Duration
	for i := range b.N {
		info := benchInfo("csi-node", i)
		started, done := make(chan struct{}), make(chan time.Time)
		go func() {
			close(started)
			_, _ = r.WaitForPlugin(b.Context(), info.Type, info.Name)
			done <- time.Now()
		}()
		<-started
		start := time.Now()
		if err := r.RegisterPlugin(info); err != nil {
			b.Fatal(err)
		}
		total += (<-done).Sub(start)
		_ = r.DeregisterPlugin(info.Type, info.Name, info.AllocID)
	}
	b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "wait-ns/op")
}

// BenchmarkEvents is the second half of row P9: one event, from the change until all subscribers have it. The floor is as many
// channel sends to as many goroutines. With a stuck subscriber the figure must be the same.
func BenchmarkEvents(b *testing.B) {
	for _, n := range []int{1, 10, 100, 10_000} {
		b.Run(fmt.Sprintf("subscribers=%d/floor", n), func(b *testing.B) {
			channels := make([]chan *dynamicplugins.PluginUpdateEvent, n)
			var wg, readers sync.WaitGroup
			for i := range channels {
				channels[i] = make(chan *dynamicplugins.PluginUpdateEvent, 16)
				readers.Go(func() {
					for range channels[i] {
						wg.Done()
					}
				})
			}
			event := &dynamicplugins.PluginUpdateEvent{}
			for b.Loop() {
				wg.Add(n)
				for _, ch := range channels {
					ch <- event
				}
				wg.Wait()
			}
			for _, ch := range channels {
				close(ch)
			}
			readers.Wait()
		})
		for _, stuck := range []int{0, 1} {
			b.Run(fmt.Sprintf("subscribers=%d/stuck=%d", n, stuck), func(b *testing.B) { benchEvents(b, n, stuck) })
		}
	}
}

func benchEvents(b *testing.B, n, stuck int) {
	r := dynamicplugins.NewRegistry(nil, nil)
	var wg, readers sync.WaitGroup
	for range n {
		events := r.PluginsUpdatedCh(b.Context(), "csi-node")
		readers.Go(func() {
			for range events {
				wg.Done()
			}
		})
	}
	for range stuck {
		_ = r.PluginsUpdatedCh(context.Background(), "csi-node")
	}
	infos := [2]*dynamicplugins.PluginInfo{benchInfo("csi-node", 1), benchInfo("csi-node", 1)}
	infos[1].Version = "2"
	i := 0
	for b.Loop() {
		wg.Add(n)
		if err := r.RegisterPlugin(infos[i%2]); err != nil {
			b.Fatal(err)
		}
		wg.Wait()
		i++
	}
	r.Shutdown()
	readers.Wait()
}
