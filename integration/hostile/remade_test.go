//go:build linux

package hostile

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

var remakes = flag.Int("remakes", 20, "how often TestRemadeDirectory makes a directory again")

// TestRemadeDirectory removes a directory with the socket of a plugin in it, and makes both again at once: the plugin is registered each time.
// How soon it is depends on the machine, and is for "make hostile-compare".
func TestRemadeDirectory(t *testing.T) {
	t.Parallel()
	t.Run("inside", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, &attack{})
		s.remake(filepath.Join(s.plugins, "remade"), *remakes)
	})
	t.Run("plugin-directory", func(t *testing.T) { // which is looked for once a second
		t.Parallel()
		s := newScene(t, &attack{second: true})
		dir := s.path("second")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		s.remake(dir, *remakes/10)
	})
}

// remake makes a directory with a plugin, and removes it, so many times.
func (s *scene) remake(dir string, times int) {
	s.Helper()
	var all []time.Duration
	for range times {
		if err := os.Mkdir(dir, 0o755); err != nil {
			s.Fatal(err)
		}
		began := time.Now()
		p := pluginwatcher.NewTestExamplePlugin("remade", "Neighbour", filepath.Join(dir, "remade.sock"), "1")
		if err := p.Serve(); err != nil {
			s.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		_, err := s.client.Wait(ctx, "Neighbour", "remade", client.GoalRegistered)
		s.fares.registered(time.Since(began), err)
		all = append(all, time.Since(began))
		if err = errors.Join(err, os.RemoveAll(dir), p.Stop()); err == nil {
			_, err = s.client.Wait(ctx, "Neighbour", "remade", client.GoalDeregistered)
		}
		cancel()
		if err != nil {
			s.Fatal(err)
		}
	}
	slices.Sort(all)
	s.Logf("registered after %v, at most %v, %d times", all[len(all)/2], all[len(all)-1], len(all))
	s.unharmed()
}
