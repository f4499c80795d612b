package load

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// TestDescriptors: a daemon gets more plugins, and then more callers, than it has descriptors for. It says so, keeps what it has, and takes
// up the others when descriptors are given back. Nothing is lost or seen twice.
func TestDescriptors(t *testing.T) {
	const limit = 256
	d := newDaemon(t, limit, "")
	seen := map[string]int{}
	var mu sync.Mutex
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	standing := make(chan struct{})
	following.Go(func() {
		stands := sync.OnceFunc(func() { close(standing) })
		for e, err := range d.Client.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true}) {
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("events: %v", err)
				}
				return
			}
			mu.Lock()
			switch e.Kind {
			case "registered":
				seen[e.Name]++
			case "deregistered":
				seen[e.Name]--
			}
			mu.Unlock()
			if e.Name == "first" {
				stands()
			}
		}
	})
	living := []*rig.Plugin{serve(t, d.Plugins(), "first")}
	defer func() { stop(t, living) }()
	<-standing // and a connection for the lists is kept, too
	for i := range limit {
		living = append(living, serve(t, d.Plugins(), fmt.Sprint("p", i)))
	}
	said := ""
	eventually(t, "the daemon says that it has no descriptors left", func() string {
		listing, err := d.Client.List(t.Context())
		if err != nil {
			return err.Error()
		}
		for _, c := range listing.Conditions {
			if c.Name == "files" && c.Status != "ok" && strings.Contains(c.Message, "too many open files") {
				said = c.Name + ": " + c.Message
			}
		}
		if said == "" {
			return fmt.Sprint(listing.Conditions)
		}
		return ""
	})
	t.Logf("it says: %s", said)

	// Callers take what is given back.
	var callers []net.Conn
	for range limit {
		conn, err := net.Dial("unix", filepath.Join(d.Dir, "control.sock"))
		if err != nil {
			break // its backlog is full
		}
		callers = append(callers, conn)
	}
	t.Logf("%d callers connected beside", len(callers))
	gone := living[1:200]
	living = append(living[:1:1], living[200:]...)
	stop(t, gone)
	for _, conn := range callers {
		conn.Close()
	}
	eventually(t, "those that are there are registered, and no other", func() string {
		listing, err := d.Client.List(t.Context())
		if err != nil {
			return err.Error()
		}
		registered := map[string]bool{}
		for _, p := range listing.Plugins {
			if p.State == "registered" {
				registered[p.Name] = true
			}
		}
		for _, p := range living {
			if !registered[p.Name] {
				return p.Name + " is missing"
			}
		}
		if len(registered) != len(living) {
			return fmt.Sprintf("%d are registered, %d are there", len(registered), len(living))
		}
		for _, c := range listing.Conditions {
			if c.Status != "ok" {
				return c.String()
			}
		}
		return ""
	})
	eventually(t, "the events add up to it", func() string {
		mu.Lock()
		defer mu.Unlock()
		count := 0
		for name, n := range seen {
			if n < 0 || n > 1 {
				return fmt.Sprintf("%s was registered %d times more than deregistered", name, n)
			}
			count += n
		}
		if count != len(living) {
			return fmt.Sprintf("%d of %d", count, len(living))
		}
		return ""
	})
	t.Logf("afterwards: %v", use(t, d))
}
