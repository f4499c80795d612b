package pluginwatcher_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// TestRefuses checks that Start and Run refuse what cannot work before they create anything, and that every method returns before Start, in
// use, after Stop and twice.
func TestRefuses(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "plugins")
	for name, change := range map[string]func(*pluginwatcher.Config){
		"an empty directory":      func(c *pluginwatcher.Config) { c.Dirs = append(c.Dirs, "") },
		"a directory twice":       func(c *pluginwatcher.Config) { c.Dirs = append(c.Dirs, dir) },
		"a nested directory":      func(c *pluginwatcher.Config) { c.Dirs = append(c.Dirs, dir+"/a") },
		"a nested deprecated one": func(c *pluginwatcher.Config) { c.DeprecatedDir = dir + "/a" },
		"a NUL":                   func(c *pluginwatcher.Config) { c.Dirs = []string{dir + "\x00"} },
		"an overlong directory":   func(c *pluginwatcher.Config) { c.Dirs = []string{dir + strings.Repeat("a", 300)} },
		"MaxDepth":                func(c *pluginwatcher.Config) { c.MaxDepth = -1 },
		"a bound":                 func(c *pluginwatcher.Config) { c.Reconciler.Bounds.Text = -1 },
		"a timeout":               func(c *pluginwatcher.Config) { c.Reconciler.Timeouts.Dial = -1 },
	} {
		cfg := pluginwatcher.Config{Dirs: []string{dir}}
		change(&cfg)
		w := pluginwatcher.New(cfg)
		startErr, runErr := w.Start(), w.Run(t.Context())
		if startErr == nil || runErr == nil {
			t.Errorf("%s: the errors are %v and %v", name, startErr, runErr)
		}
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a directory was created: %v", name, err)
		}
	}
	w := pluginwatcher.NewWatcher(dir, "")
	for name, add := range map[string]func(){
		"a nil handler":       func() { w.AddHandler("T", nil) },
		"a nil cache handler": func() { w.AddCacheHandler("T", nil) },
		"no type":             func() { w.AddHandler("", pluginwatcher.NewExampleHandler(nil, false)) },
		"a slash":             func() { w.AddHandler("T/x", pluginwatcher.NewExampleHandler(nil, false)) },
		"a control character": func() { w.AddHandler("T\x1b", pluginwatcher.NewExampleHandler(nil, false)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("AddHandler accepted %s", name)
				}
			}()
			add()
		}()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	all := func(state string) {
		w.RemoveHandler("none")
		w.Reconsider()
		w.Plugins()
		w.Conditions()
		if w.Retry("", "") || w.ReleaseName(ended, "", "") == nil || w.SetTimeouts(reconciler.Timeouts{Dial: -1}, nil) == nil {
			t.Errorf("%s, what cannot be was accepted", state)
		}
	}
	all("before Start")
	for range 2 {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		if w.Start() == nil || w.Run(t.Context()) == nil {
			t.Error("it was started twice")
		}
		all("in use")
		for range 2 {
			if err := w.Stop(); err != nil {
				t.Error(err)
			}
		}
		all("after Stop")
	}
	if err := w.Run(ended); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
	p := pluginwatcher.NewExamplePlugin()
	if p.Serve() == nil || p.Stop() != nil {
		t.Error("an example plugin without a socket serves, or cannot be stopped")
	}
}
