package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// runPublisher runs a publisher until the test ends.
func runPublisher(t *testing.T, f *fake, config PublisherConfig) *Publisher {
	t.Helper()
	p, err := NewPublisher(clusterOf(f, defaultTimeout), config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return p
}

// TestWritesOnlyChanges checks that nothing is written without changes, even after notifications, and that each renewal compares the
// conditions.
func TestWritesOnlyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, local := newFake(), newFakeLocal("T/one")
		p := runPublisher(t, f, PublisherConfig{Node: "a", Local: local})
		time.Sleep(time.Minute)
		if f.writes() != 1 || !p.Condition().OK {
			t.Fatalf("a start made %d writes: %+v", f.writes(), p.Condition())
		}
		for range 100 {
			local.set("T/one") // without a change
			time.Sleep(time.Second)
		}
		time.Sleep(24 * time.Hour)
		if f.writes() != 1 {
			t.Errorf("a node at rest made %d writes", f.writes())
		}
		// A day has 25,920 thirds of a presence and 72 thirds of a retention.
		if f.renewalsSoFar() < 23_000 || f.renewalsSoFar() > 29_000 {
			t.Errorf("%d renewals in a day", f.renewalsSoFar())
		}
		local.mu.Lock()
		local.conditions = []plugin.Condition{{Name: "discovery", Message: "broken"}}
		local.mu.Unlock()
		time.Sleep(DefaultPresence)
		if f.writes() != 2 {
			t.Errorf("a condition that changed was not written: %d writes", f.writes())
		}
	})
}

// TestStopped checks that a node that has stopped has no presence, and that its record has the time and its last plugins.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, node := newFake(), keys.Space{}.NodeRange("a")
		p, err := NewPublisher(clusterOf(f, defaultTimeout), PublisherConfig{Node: "a", Local: newFakeLocal("T/one")})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p.Run(ctx)
		known := &facts{}
		known.put(keys.Record, &mvccpb.KeyValue{Value: []byte(f.value(node + keys.Record))})
		if m := known.node("a", nil, time.Time{}, time.Now()); m.State != NodeStopped || len(m.plugins) != 1 || f.value(node+keys.Presence) != "" {
			t.Errorf("%+v with %d plugins; presence %q", m, len(m.plugins), f.value(node+keys.Presence))
		}
	})
}

// TestCoalesces checks that many simultaneous changes are one write, that continuous changes are written less and less often, and that the
// last change is always written.
func TestCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, local := newFake(), newFakeLocal()
		runPublisher(t, f, PublisherConfig{Node: "a", Local: local})
		time.Sleep(time.Minute)
		start := f.writes()
		for i := range 1000 {
			local.set(fmt.Sprintf("T/%d", i))
		}
		time.Sleep(time.Minute)
		if got := f.writes() - start; got != 1 {
			t.Errorf("1000 changes at once made %d writes", got)
		}
		start = f.writes()
		for i := range 6000 { // ten minutes
			local.set(fmt.Sprintf("T/%d", i))
			time.Sleep(100 * time.Millisecond)
		}
		if got := f.writes() - start; got < 30 || got > 60 {
			t.Errorf("changes without end made %d writes in ten minutes", got)
		}
		time.Sleep(time.Minute)
		if value := f.value(keys.Space{}.NodeRange("a") + keys.Record); !strings.Contains(value, "5999") {
			t.Error("the last change was not written")
		}
		// After a time without changes, writes are quick again.
		time.Sleep(10 * time.Minute)
		start = f.writes()
		local.set("T/quick")
		time.Sleep(2 * defaultMinInterval)
		if got := f.writes() - start; got != 1 {
			t.Errorf("%d writes after a rest", got)
		}
	})
}

// TestFullStaysPresent checks that renewals continue while nothing can be written, and that attempts to write become rare.
func TestFullStaysPresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, local := newFake(), newFakeLocal("T/one")
		p := runPublisher(t, f, PublisherConfig{Node: "a", Local: local})
		time.Sleep(time.Minute)
		f.set(func() { f.full = true })
		local.set("T/two")
		before := f.renewalsSoFar()
		failures := p.Stats().Failures
		time.Sleep(10 * time.Minute)
		if got := f.renewalsSoFar() - before; got < 150 {
			t.Errorf("%d renewals in ten minutes", got)
		}
		if got := p.Stats().Failures - failures; got < 10 || got > 50 {
			t.Errorf("%d attempts to write in ten minutes", got)
		}
		if c := p.Condition(); c.OK || time.Since(c.Since) < 9*time.Minute {
			t.Errorf("condition %+v", c)
		}
		f.set(func() { f.full = false })
		time.Sleep(time.Minute)
		if c := p.Condition(); !c.OK || p.Stats().Sessions != 1 {
			t.Errorf("condition %+v, stats %+v", c, p.Stats())
		}
	})
}

// most returns the greatest number of times within one second.
func most(times []time.Time) int {
	slices.SortFunc(times, time.Time.Compare)
	greatest := 0
	for i, from := 0, 0; i < len(times); i++ {
		for times[i].Sub(times[from]) >= time.Second {
			from++
		}
		greatest = max(greatest, i-from+1)
	}
	return greatest
}

// TestNoStorm checks that many nodes that lose etcd at the same time retry less and less often, and reconnect one after another.
func TestNoStorm(t *testing.T) {
	nodes := 1000
	if testing.Short() {
		nodes = 250
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var all []*Publisher
		for i := range nodes {
			all = append(all, runPublisher(t, f, PublisherConfig{Node: fmt.Sprint(i), Local: newFakeLocal("T/one")}))
		}
		time.Sleep(time.Minute)
		f.set(func() { f.away, f.dialed, f.committed = true, nil, nil })
		time.Sleep(10 * time.Minute)
		dialed := f.dials()
		perMinute := len(dialed) / 10 / nodes
		t.Logf("while etcd is away: %d attempts per node and minute, at most %d of %d nodes in one second", perMinute, most(dialed), nodes)
		if perMinute > 5 {
			t.Errorf("%d attempts per node and minute", perMinute)
		}
		f.set(func() { f.away, f.dialed = false, nil })
		back := time.Now()
		time.Sleep(time.Minute)
		for _, p := range all {
			if !p.Condition().OK {
				t.Fatalf("a node did not come back: %+v", p.Condition())
			}
		}
		dialed = f.dials()
		slices.SortFunc(dialed, time.Time.Compare)
		t.Logf("back: at most %d of %d nodes in one second, the last after %v", most(dialed), nodes,
			dialed[len(dialed)-1].Sub(back).Round(time.Second))
		if got := most(dialed); got > nodes/10 {
			t.Errorf("%d of %d nodes came back in one second", got, nodes)
		}
		if f.writes() != 0 {
			t.Errorf("%d nodes wrote although etcd had everything", f.writes())
		}
	})
}

// TestInstances checks that a node saves the last instances that may be in etcd, and its own instance before it is in etcd.
func TestInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "instance")
		var want []string
		for range 6 {
			p := runPublisher(t, newFake(), PublisherConfig{Node: "a", Local: newFakeLocal(), InstanceFile: file})
			if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), p.Instance()) {
				t.Error("it is remembered before it is published")
			}
			time.Sleep(time.Minute)
			want = append([]string{p.Instance()}, want...)
			want = want[:min(len(want), maxInstances)]
			if text, err := os.ReadFile(file); err != nil || string(text) != strings.Join(want, "\n")+"\n" {
				t.Errorf("%q, %v, want %v", text, err, want)
			}
		}
	})
}

// TestRefuses checks that the errors of invalid configurations have a remedy.
func TestRefuses(t *testing.T) {
	for want, config := range map[string]PublisherConfig{
		"node name \"\"":        {},
		"use letters, digits":   {Node: "a/b"},
		"it has dots only":      {Node: ".."},
		"use at most 253":       {Node: strings.Repeat("a", 254)},
		"at least 2s":           {Node: "a", Presence: time.Second},
		"MinInterval is neg":    {Node: "a", MinInterval: -1},
		"longer than presence,": {Node: "a", Presence: time.Minute, Retention: time.Minute},
	} {
		config.Local = newFakeLocal()
		if _, err := NewPublisher(clusterOf(newFake(), time.Second), config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", config, err, want)
		}
	}
	c := clusterOf(newFake(), time.Second)
	if _, err := NewPublisher(c, PublisherConfig{Node: "a"}); err == nil {
		t.Error("a publisher of nothing was accepted")
	}
	c.config.Namespace = "a b"
	if _, err := NewPublisher(c, PublisherConfig{Node: "a", Local: newFakeLocal()}); err == nil || !strings.Contains(err.Error(), `namespace "a b"`) {
		t.Errorf("a namespace with a space: error %v", err)
	}
	for want, e := range map[string]Etcd{
		"no etcd endpoint":      {},
		"is not a URL":          {Endpoints: []string{"10.0.0.1:2379"}},
		"\"http://a\" is no":    {Endpoints: []string{"http://a"}},
		"\"http://a:1/\" is no": {Endpoints: []string{"http://a:1/"}},
		"use https:// for all":  {Endpoints: []string{"https://a:1", "http://b:1"}},
		"settings for TLS":      {Endpoints: []string{"http://a:1"}, CA: "ca.crt"},
		"needs its key":         {Endpoints: []string{"https://a:1"}, Cert: "a.crt"},
		"needs a password":      {Endpoints: []string{"https://a:1"}, User: "a"},
		"is negative: -1ns":     {Endpoints: []string{"https://a:1"}, Timeout: -1},
		"no such file":          {Endpoints: []string{"https://a:1"}, CA: "/nowhere/ca.crt"},
	} {
		if _, err := Connect(e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", e, err, want)
		}
	}
}
