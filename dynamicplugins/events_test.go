package dynamicplugins_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

func TestEventsByType(t *testing.T) {
	r := open(t, nil, nil)
	register(t, r, newInfo("t", "before", "1"))
	events, others, all := r.PluginsUpdatedCh(t.Context(), "t"), r.PluginsUpdatedCh(t.Context(), "u"), r.PluginsUpdatedCh(t.Context(), "")
	register(t, r, newInfo("t", "n", "1"), newInfo("u", "n", "2"), version(newInfo("t", "n", "1"), "2"))
	check(t, r.DeregisterPlugin("t", "n", "1"))
	if err := r.DeregisterPlugin("t", "n", "1"); !errors.Is(err, dynamicplugins.ErrNotFound) {
		t.Error(err)
	}
	expectEvents(t, events, "registered 1 1", "updated 1 2", "deregistered 1 2")
	expectEvents(t, others, "registered 2 1")
	expectEvents(t, all, "registered 1 1", "registered 2 1", "updated 1 2", "deregistered 1 2")
}

// follower keeps a picture of the registry from a channel of events alone.
type follower struct {
	plugins map[string]string // version by type, name and AllocID
	resyncs int
}

func follow(plugins []*dynamicplugins.PluginInfo) *follower {
	f := &follower{}
	f.set(plugins)
	return f
}

func (f *follower) set(plugins []*dynamicplugins.PluginInfo) {
	f.plugins = make(map[string]string)
	for _, p := range plugins {
		f.plugins[p.Type+"/"+p.Name+"/"+p.AllocID] = p.Version
	}
}

// apply changes the picture; an event that does not fit it is an error.
func (f *follower) apply(e *dynamicplugins.PluginUpdateEvent) error {
	if e.EventType == dynamicplugins.EventTypeResync {
		f.resyncs++
		f.set(e.Plugins)
		return nil
	}
	id := e.Info.Type + "/" + e.Info.Name + "/" + e.Info.AllocID
	_, known := f.plugins[id]
	if known == (e.EventType == dynamicplugins.EventTypeRegistered) {
		return fmt.Errorf("%s %s, known: %v", e.EventType, id, known)
	}
	if e.EventType == dynamicplugins.EventTypeDeregistered {
		delete(f.plugins, id)
	} else {
		f.plugins[id] = e.Info.Version
	}
	return nil
}

// TestWatch: the snapshot and the events meet without gap or repeat, while others register and deregister.
func TestWatch(t *testing.T) {
	r := open(t, nil, nil)
	stop, done := context.WithCancel(t.Context())
	defer done()
	var writers, watchers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; stop.Err() == nil; i++ {
				p := newInfo("t", fmt.Sprint("plugin ", w, i%7), fmt.Sprint(w))
				register(t, r, p, version(p, fmt.Sprint(i)))
				if i%3 != 0 {
					check(t, r.DeregisterPlugin(p.Type, p.Name, p.AllocID))
				}
			}
		})
	}
	for range 4 {
		watchers.Go(func() {
			for range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				plugins, events := r.Watch(ctx, "t")
				f := follow(plugins)
				for range 100 {
					if err := f.apply(<-events); err != nil {
						t.Error(err)
					}
				}
				cancel()
			}
		})
	}
	watchers.Wait()
	done()
	writers.Wait()
}

// TestStuckSubscriber: it stops nobody, and learns the present state when it reads again.
func TestStuckSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newStore(nil, nil)
		defer r.Shutdown()
		register(t, r, newInfo("t", "a", "1"), newInfo("t", "a", "2"), newInfo("u", "a", "3"))
		plugins, events := r.Watch(t.Context(), "t")
		f := follow(plugins)
		for i := range 6000 {
			register(t, r, newInfo("t", "n", fmt.Sprint(i)))
			if i >= 10 {
				check(t, r.DeregisterPlugin("t", "n", fmt.Sprint(i-10)))
			}
		}
		var resync *dynamicplugins.PluginUpdateEvent
		for synctest.Wait(); len(events) > 0; synctest.Wait() {
			e := <-events
			check(t, f.apply(e))
			if e.EventType == dynamicplugins.EventTypeResync {
				resync = e
			}
		}
		if f.resyncs != 1 || resync.Info != nil {
			t.Fatalf("%d resyncs, the last is %+v", f.resyncs, resync)
		}
		var want []*dynamicplugins.PluginInfo
		for _, in := range r.Instances("t", "") {
			want = append(want, in.Info)
		}
		if d := cmp.Diff(want, resync.Plugins); d != "" {
			t.Errorf("the resync differs from the state (-state +resync):\n%s", d)
		}
		register(t, r, newInfo("t", "after", "1"))
		if e := <-events; e.Info.Name != "after" {
			t.Errorf("after the resync came %+v", e)
		}
	})
}

// TestPatientSubscriber: as long as no more than 8,192 events are unread, each arrives.
func TestPatientSubscriber(t *testing.T) {
	const unread = 8192
	r := open(t, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := r.PluginsUpdatedCh(ctx, "t")
	for i := range unread {
		register(t, r, version(newInfo("t", "n", "1"), fmt.Sprint(i)))
	}
	for i := range unread {
		if e := <-events; e.Info == nil || e.Info.Version != fmt.Sprint(i) {
			t.Fatalf("event %d is %+v", i, e)
		}
	}
}

// TestSlowSubscriber: over any number of resyncs, what a subscriber knows in the end is what there is.
func TestSlowSubscriber(t *testing.T) {
	r := open(t, nil, nil)
	plugins, events := r.Watch(t.Context(), "t")
	f := follow(plugins)
	const each = 40_000
	var writers sync.WaitGroup
	var changes atomic.Int64
	for w := range 2 {
		writers.Go(func() {
			for i := range each {
				register(t, r, version(newInfo("t", "n", fmt.Sprint(w, i%50)), fmt.Sprint(i)))
				if i%3 == 0 {
					check(t, r.DeregisterPlugin("t", "n", fmt.Sprint(w, i%50)))
				}
				changes.Add(1)
			}
		})
	}
	for changes.Load() < 2*each-10_000 { // let it fall behind, and read up to a resync
		for next := changes.Load() + 10_000; changes.Load() < next; {
			runtime.Gosched()
		}
		for resyncs := f.resyncs; f.resyncs == resyncs; {
			check(t, f.apply(<-events))
		}
	}
	writers.Wait()
	register(t, r, newInfo("t", "last", "1"))
	for f.plugins["t/last/1"] == "" {
		check(t, f.apply(<-events))
	}
	want := follow(nil)
	for _, in := range r.Instances("t", "") {
		want.plugins[in.Info.Type+"/"+in.Info.Name+"/"+in.Info.AllocID] = in.Info.Version
	}
	if d := cmp.Diff(want.plugins, f.plugins); d != "" {
		t.Errorf("after %d resyncs (-state +subscriber):\n%s", f.resyncs, d)
	}
}

func TestEventsEndWithContext(t *testing.T) {
	r := open(t, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	events := r.PluginsUpdatedCh(ctx, "t")
	cancel()
	if _, ok := <-events; ok {
		t.Error("there was an event")
	}
	register(t, r, newInfo("t", "n", "1"))
}

func TestWaitForPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newStore(nil, nil)
		defer r.Shutdown()
		wait := func() <-chan string {
			found := make(chan string, 1)
			go func() {
				p, err := r.WaitForPlugin(t.Context(), "t", "n")
				if err != nil {
					t.Error(err)
				}
				found <- p.AllocID
			}()
			synctest.Wait()
			return found
		}
		start := time.Now()
		first, second := wait(), wait()
		register(t, r, newInfo("u", "n", "no"), newInfo("t", "m", "no"))
		staged := stage(t, r, newInfo("t", "n", "1"))
		synctest.Wait()
		if len(first)+len(second) != 0 {
			t.Error("WaitForPlugin returned too early")
		}
		staged.Publish()
		if got := <-first + <-second; got != "11" {
			t.Errorf("found %s", got)
		}
		if got := <-wait(); got != "1" {
			t.Errorf("found %s", got)
		}

		check(t, r.MarkUnreachable("t", "n", "1", errors.New("dead")))
		living := wait()
		if len(living) != 0 {
			t.Error("WaitForPlugin returned a dead instance")
		}
		register(t, r, newInfo("t", "n", "2"))
		if got := <-living; got != "2" {
			t.Errorf("found %s", got)
		}
		if time.Since(start) != 0 {
			t.Error("WaitForPlugin polls")
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.WaitForPlugin(ctx, "t", "never")
		if err != context.DeadlineExceeded { //nolint:errorlint // as with Nomad's, it is not wrapped
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}
