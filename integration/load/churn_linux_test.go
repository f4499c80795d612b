package load

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// TestChurn: plugins are replaced at a steady rate, the oldest first, each by one of another name. Every one is seen to be registered and
// deregistered exactly once, however long that goes on, and it takes no longer and no more memory at the end than at the beginning.
func TestChurn(t *testing.T) {
	d := newDaemon(t, 0, "")
	seen := &changes{born: map[string]time.Time{}, gone: map[string]time.Time{}, registered: map[string]int{}, deregistered: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() {
		for e, err := range d.Client.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true}) {
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("events: %v", err)
				}
				return
			}
			seen.take(t, e)
		}
	})
	var living []*rig.Plugin
	next := 0
	appear := func() {
		name := fmt.Sprint("p", next)
		next++
		living = append(living, seen.appears(name, func() *rig.Plugin { return serve(t, d.Plugins(), name) }))
	}
	defer func() { stop(t, living) }()
	for range *sockets {
		appear()
	}
	eventually(t, "the first plugins are registered", seen.allSeen)
	seen.cut()
	before := use(t, d)
	t.Logf("%d plugins registered: %v", *sockets, before)

	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\nuntil\treplaced\tappears to told p50\tp99\tmax\tappears to event p50\tp99\tmax\tgoes to event p50\tp99\tmax\tMB resident\tMB heap\t\n")
	tells := []time.Duration{}
	began := time.Now()
	windowEnd := *window
	for replaced := 0; time.Since(began) < *length; {
		due := time.Duration(replaced) * time.Second / time.Duration(*rate)
		if pause := due - time.Since(began); pause > 0 {
			time.Sleep(pause)
		}
		oldest := living[0]
		at := told(t, oldest)
		if replaced >= *sockets { // the first ones came all at once
			tells = append(tells, at.Sub(oldest.Born))
		}
		seen.goes(oldest.Name)
		if err := oldest.Stop(false); err != nil {
			t.Fatal(err)
		}
		living = slices.Delete(living, 0, 1)
		appear()
		replaced++
		if time.Since(began) >= windowEnd || time.Since(began) >= *length {
			appears, goes := seen.cut()
			u := use(t, d)
			fmt.Fprintf(w, "%v\t%d\t%s%s%s%.1f\t%.1f\t\n", time.Since(began).Round(time.Second), replaced, quantiles(tells), quantiles(appears),
				quantiles(goes), float64(u.RSS)/1e6, float64(u.Heap)/1e6)
			tells = tells[:0]
			windowEnd += *window
		}
	}
	eventually(t, "every change is seen", seen.allSeen)
	seen.exactly(t, next, len(living))
	_ = w.Flush()
	t.Logf("%s%d plugins registered, %d replaced: %v", &table, len(living), next-*sockets, use(t, d))
}

// quantiles returns the median, the 99th percentile and the maximum, as three cells.
func quantiles(all []time.Duration) string {
	if len(all) == 0 {
		return "-\t-\t-\t"
	}
	slices.Sort(all)
	text := ""
	for _, d := range []time.Duration{all[len(all)/2], all[len(all)*99/100], all[len(all)-1]} {
		text += d.Round(10*time.Microsecond).String() + "\t"
	}
	return text
}

// changes is what a subscriber has seen, and what it should.
type changes struct {
	mu                       sync.Mutex
	last                     uint64
	born, gone               map[string]time.Time
	registered, deregistered map[string]int
	appearing, going         []time.Duration // since the last cut
}

// appears has a plugin appear. Its event is taken afterwards.
func (c *changes) appears(name string, serve func() *rig.Plugin) *rig.Plugin {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := serve()
	c.born[name] = p.Born
	return p
}

func (c *changes) goes(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone[name] = time.Now()
}

func (c *changes) take(t *testing.T, e *patchbayv1.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != 0 && e.Seq != c.last+1 {
		t.Errorf("event %d follows event %d", e.Seq, c.last)
	}
	c.last = e.Seq
	switch e.Kind {
	case "registered":
		c.registered[e.Name]++
		c.appearing = append(c.appearing, time.Since(c.born[e.Name]))
	case "deregistered":
		c.deregistered[e.Name]++
		if c.registered[e.Name] != 1 {
			t.Errorf("%s was deregistered after %d registrations", e.Name, c.registered[e.Name])
		}
		c.going = append(c.going, time.Since(c.gone[e.Name]))
	}
}

// cut returns what was measured since the last cut.
func (c *changes) cut() (appearing, going []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	appearing, going = c.appearing, c.going
	c.appearing, c.going = nil, nil
	return appearing, going
}

func (c *changes) allSeen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.registered) < len(c.born) || len(c.deregistered) < len(c.gone) {
		return fmt.Sprintf("%d of %d were registered, %d of %d deregistered", len(c.registered), len(c.born), len(c.deregistered), len(c.gone))
	}
	return ""
}

// exactly checks that each of so many plugins was registered once, and all but those that live were deregistered once.
func (c *changes) exactly(t *testing.T, made, living int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range made {
		name := fmt.Sprint("p", i)
		want := 1
		if i >= made-living {
			want = 0
		}
		if c.registered[name] != 1 || c.deregistered[name] != want {
			t.Errorf("%s was registered %d times and deregistered %d times, want once and %d times", name, c.registered[name],
				c.deregistered[name], want)
		}
	}
}
