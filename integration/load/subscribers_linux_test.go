package load

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// announced is how many plugins the subscribers see.
const announced = 20

// TestSubscribers: every subscriber of the library, half of them of the runtime's events and half of the registry's, sees every plugin, in
// the same order, whether others read or not.
func TestSubscribers(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	rt.AddHandler(pluginType, patchbay.AcceptHandler())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := rt.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	<-rt.Ready()
	before := memory()
	orders := make(chan []string, *subscribers)
	for i := range *subscribers {
		if i%100 == 99 { // one that does not read
			rt.Events(ctx, 0)
			continue
		}
		if i%2 == 0 {
			events := rt.Events(ctx, 0)
			running.Go(func() {
				orders <- collect(func(yield func(string) bool) {
					for e := range events {
						if e.Kind == "registered" && !yield(e.Name) {
							return
						}
					}
				})
			})
			continue
		}
		events := rt.Registry().PluginsUpdatedCh(ctx, pluginType)
		running.Go(func() {
			orders <- collect(func(yield func(string) bool) {
				for e := range events {
					if e.EventType == "registered" && !yield(e.Info.Name) {
						return
					}
				}
			})
		})
	}
	t.Logf("%d subscribers: %d bytes each, with their goroutines", *subscribers, (memory()-before) / *subscribers)
	began := time.Now()
	plugins := announce(t, dir)
	defer stop(t, plugins)
	check(t, orders, *subscribers-*subscribers/100)
	t.Logf("%d events seen by all after %v", announced, time.Since(began).Round(time.Millisecond))
}

// collect returns the first names.
func collect(names func(yield func(string) bool)) []string {
	var all []string
	for name := range names {
		if all = append(all, name); len(all) == announced {
			break
		}
	}
	return all
}

func announce(t *testing.T, dir string) []*rig.Plugin {
	t.Helper()
	var plugins []*rig.Plugin
	for i := range announced {
		plugins = append(plugins, serve(t, dir, fmt.Sprint("p", i)))
	}
	return plugins
}

// check takes so many orders, and fails the test if one is incomplete or another than the first.
func check(t *testing.T, orders <-chan []string, count int) {
	t.Helper()
	late := time.After(patience)
	var first []string
	for i := range count {
		select {
		case order := <-orders:
			if first == nil {
				first = order
			}
			if len(order) != announced || !slices.Equal(order, first) {
				t.Fatalf("one subscriber saw\n%v\nand the first\n%v", order, first)
			}
		case <-late:
			t.Fatalf("%d of %d subscribers had not seen everything after %v", count-i, count, patience)
		}
	}
}

// memory returns what this process has in use, once garbage is gone.
func memory() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

// TestStreams: so many callers follow the events over the control API, each on a connection of its own, and all see the same. When they are
// gone the daemon has as many descriptors as before.
func TestStreams(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	count := min(*streams, int(limit.Cur)-500)
	d := newDaemon(t, 0, "")
	first := serve(t, d.Plugins(), "first")
	told(t, first)
	before := use(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	standing := make(chan struct{}, count)
	orders := make(chan []string, count)
	for range count {
		following.Go(func() {
			c := client.New(d.Dir + "/control.sock")
			defer c.Close()
			orders <- collect(func(yield func(string) bool) {
				for e, err := range c.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true}) {
					if err != nil {
						if ctx.Err() == nil {
							t.Errorf("events: %v", err)
						}
						return
					}
					switch {
					case e.Kind != "registered":
					case e.Name == "first":
						standing <- struct{}{} // an event of before is the only sign that a stream stands
					case !yield(e.Name):
						return
					}
				}
			})
			<-ctx.Done() // all stay until the last has seen all
		})
	}
	late := time.After(patience)
	for i := range count {
		select {
		case <-standing:
		case <-late:
			t.Fatalf("%d of %d streams do not stand after %v: %v", count-i, count, patience, use(t, d))
		}
	}
	u := use(t, d)
	t.Logf("before: %v\nwith %d streams: %v: %d bytes each", before, count, u, (u.RSS-before.RSS)/count)
	began := time.Now()
	plugins := announce(t, d.Plugins())
	check(t, orders, count)
	t.Logf("%d events seen by all after %v", announced, time.Since(began).Round(time.Millisecond))
	cancel()
	stop(t, append(plugins, first))
	eventually(t, "the descriptors are given back", func() string {
		// The stable sockets of plugins that have gone stay for a while.
		if u := use(t, d); u.Descriptors > before.Descriptors+announced+5 {
			return u.String()
		}
		return ""
	})
	t.Logf("afterwards: %v", use(t, d))
}
