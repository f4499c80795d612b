package fleet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPresenceFor(t *testing.T) {
	for nodes, want := range map[int]time.Duration{
		0: 10 * time.Second, 500: 10 * time.Second, 667: 10 * time.Second, 1000: 15 * time.Second, 5000: 75 * time.Second,
		50_000: 750 * time.Second, 1_000_000: 15 * time.Minute,
	} {
		if got := PresenceFor(nodes, DefaultPresence, DefaultRetention); got != want {
			t.Errorf("%d nodes: %v, want %v", nodes, got, want)
		}
	}
	if got := PresenceFor(50_000, time.Hour, 2*time.Hour); got != time.Hour {
		t.Errorf("what was configured is the least: %v", got)
	}
}

// TestScales: a node renews its presence as rarely as fits the size of the fleet, so that 50,000 of them renew 200 times a second, and stays
// published while the size changes.
func TestScales(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.others = 50_000
		p := runPublisher(t, f, PublisherConfig{Node: "a", Local: newFakeLocal("T/one")})
		time.Sleep(time.Minute)
		before := f.renewalsSoFar()
		time.Sleep(24 * time.Hour)
		perSecond := float64(f.renewalsSoFar()-before) / (24 * 60 * 60) * 50_000
		t.Logf("%.0f renewals a second", perSecond)
		if perSecond > 300 {
			t.Errorf("50,000 such nodes renew %.0f times a second", perSecond)
		}
		f.set(func() { f.others = 100 })
		time.Sleep(DefaultRetention)
		var got []time.Duration
		f.set(func() { got = slices.Clone(f.granted) })
		if len(got) != 3 || got[0] != 750*time.Second || got[2] != DefaultPresence {
			t.Errorf("leases: %v", got)
		}
		if got := p.Stats(); got.Failures != 0 || !p.Condition().OK {
			t.Errorf("%+v, %+v", got, p.Condition())
		}
	})
}

// TestInstances: a node remembers the last instances that may be in etcd, its own before it is.
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

// TestColdStart: a node of a large fleet that starts at the same moment as all others begins with the presence that it had, and has a
// shorter one when the fleet turns out to be small.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "instance")
		start := func(others int64) *fake {
			f := newFake()
			f.others = others
			runPublisher(t, f, PublisherConfig{Node: "a", Local: newFakeLocal("T/one"), InstanceFile: file})
			time.Sleep(time.Minute)
			return f
		}
		leases := func(f *fake) (granted []time.Duration) {
			f.set(func() {
				granted = slices.DeleteFunc(slices.Clone(f.granted), func(d time.Duration) bool { return d == DefaultRetention })
			})
			return granted
		}
		start(50_000)
		f := start(0) // of the others etcd does not know yet
		if got := leases(f); len(got) != 1 || got[0] != 750*time.Second {
			t.Fatalf("its presence is %v", got)
		}
		renewed := f.renewalsSoFar()
		time.Sleep(30 * time.Second)
		if more := f.renewalsSoFar() - renewed; more > 1 {
			t.Errorf("it renewed %d times in half a minute", more)
		}
		time.Sleep(2 * firstCount * 4)
		if got := leases(f); len(got) != 2 || got[1] != DefaultPresence {
			t.Errorf("its presence in a fleet of one is %v", got)
		}
		if got := leases(start(0)); len(got) != 1 || got[0] != DefaultPresence {
			t.Errorf("its presence after that is %v", got)
		}
		if err := os.WriteFile(file, []byte("presence=nonsense\npresence=-5s\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := leases(start(0)); len(got) != 1 || got[0] != DefaultPresence {
			t.Errorf("its presence with a damaged file is %v", got)
		}
	})
}

// TestFirstAttemptFails: a node that comes to a large fleet, and fails at first, does not wait as if thousands came back with it. One that
// was there does.
func TestFirstAttemptFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "instance")
	for _, known := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			within := 0
			for range 20 {
				if err := os.RemoveAll(file); err != nil {
					t.Fatal(err)
				}
				if known {
					if err := os.WriteFile(file, []byte("before\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				f := newFake()
				f.others, f.full = 50_000, true
				p := runPublisher(t, f, PublisherConfig{Node: "a", Local: newFakeLocal("T/one"), InstanceFile: file})
				time.Sleep(2 * time.Second)
				f.set(func() { f.full = false })
				time.Sleep(defaultSpread + retry.Max)
				if p.Stats().Sessions == 1 {
					within++
				}
			}
			if known && within > 15 || !known && within < 20 {
				t.Errorf("known to the fleet: %t; %d of 20 are published soon", known, within)
			}
		})
	}
}
