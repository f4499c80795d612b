package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

// remembering returns a lookup with a file, and its log.
func (r *ranges) remembering(file string) (*Lookup, *strings.Builder) {
	r.t.Helper()
	log := new(strings.Builder)
	l := OpenLookup(clusterOf(r, 4*time.Second), LookupConfig{
		NodeFile: file, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Whole: noWhole{},
	})
	r.t.Cleanup(l.Close)
	return l, log
}

// call does what a dialer does after it has opened a stream.
func (r *ranges) call(l *Lookup, node string) {
	r.t.Helper()
	found, err := l.Find(r.t.Context(), Filter{Nodes: []string{node}})
	if len(found) != 1 || err != nil {
		r.t.Fatalf("node %s: %v, %v", node, found, err)
	}
	found[0].Called()
}

// TestRemembers checks that the next lookup finds the nodes that were called, and no others, while etcd is away.
func TestRemembers(t *testing.T) { synctest.Test(t, testRemembers) }

func testRemembers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodes")
	r := newRanges(t)
	labels := map[string]string{"zone": "a"}
	for _, name := range []string{"a", "b", "gone"} {
		r.node(name, true, labels)
	}
	l, _ := r.remembering(file)
	l.Close()
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the first call there is a file: %v", err)
	}
	l, _ = r.remembering(file)
	r.call(l, "a")
	r.call(l, "gone")
	l.Close()
	for name, find := range map[string]func() error{
		"a node that is known": func() error { _, err := l.Find(t.Context(), Filter{Nodes: []string{"a"}}); return err },
		"a plugin":             func() error { _, err := r.find(l, nil); return err },
		"a lock":               func() error { _, _, err := l.Holder(t.Context(), plugin.Name{Type: "T", Name: "n"}); return err },
	} {
		if err := find(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}

	r.refusing(away)
	l, log := r.remembering(file)
	r.finds(l, 2, nil)
	r.finds(l, 1, func(f *Filter) { f.Nodes = []string{"a"} })
	r.finds(l, 2, func(f *Filter) { f.Labels = labels })
	for name, change := range map[string]func(*Filter){
		"a node that was not called": func(f *Filter) { f.Nodes = []string{"b"} },
		"another name":               func(f *Filter) { f.Names = []string{"other"} },
		"another type":               func(f *Filter) { f.Types = []string{"Other"} },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		f := Filter{Types: []string{"T"}, Names: []string{"n"}, Few: few}
		change(&f)
		if found, err := l.Find(ctx, f); err == nil || len(found) > 0 {
			t.Errorf("%s: %v, %v", name, found, err)
		}
		cancel()
	}
	if text := log.String(); strings.Contains(text, "not known") {
		t.Errorf("the log is %s", text)
	}

	// The records in etcd replace those of the file, even for nodes that are not called then.
	delete(r.keys, keys.Space{}.NodeRange("gone")+keys.Record)
	delete(r.keys, keys.Space{}.NodeRange("gone")+keys.Presence)
	r.refusing(nil)
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Second) {
		text, err := os.ReadFile(file)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the file is %s: %v", text, err)
		}
		if !strings.Contains(string(text), `"gone"`) && strings.Contains(string(text), `"a"`) {
			break
		}
	}
	r.finds(l, 1, func(f *Filter) { f.Nodes = []string{"a"} })
}

// TestRemembersFew checks that the file has the nodes that were called last, and does not grow.
func TestRemembersFew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodes")
	r := newRanges(t)
	l, _ := r.remembering(file)
	var plugins []*fleetv1.PluginRecord
	for i := range maxCachedPlugins + 1 {
		plugins = append(plugins, &fleetv1.PluginRecord{Type: "T", Name: strings.Repeat("n", 9) + fmt.Sprint(i), State: "registered", Current: true})
	}
	for i := range maxCached + 100 {
		l.cache.add(&Node{
			NodeRecord: &fleetv1.NodeRecord{Address: "127.0.0.1:1"}, Name: fmt.Sprint(i), State: NodeReady, plugins: plugins,
		})
	}
	l.Close()
	text, err := os.ReadFile(file)
	if err != nil || len(text) > maxCacheSize || strings.Contains(string(text), fmt.Sprintf(`n%d"`, maxCachedPlugins)) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	l, log := r.remembering(file)
	if last := fmt.Sprint(maxCached + 99); l.cache.get(last) == nil || l.cache.get("1") != nil || len(l.cache.nodes) > maxCached || len(l.cache.nodes) < 10 {
		t.Errorf("%d nodes are remembered; the log is %s", len(l.cache.nodes), log)
	}
}

// TestCallsInTurn checks that calls to more nodes than the cache has do not write the file more often than once a minute in the long run.
func TestCallsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "nodes")
		l, _ := newRanges(t).remembering(file)
		writes := 0
		var before os.FileInfo
		for i := range 10 * 60 {
			l.cache.add(&Node{
				NodeRecord: &fleetv1.NodeRecord{Address: "127.0.0.1:1"}, Name: fmt.Sprint(i % (maxCached + 50)), State: NodeReady,
				plugins: []*fleetv1.PluginRecord{{Type: "T", Name: "n", State: "registered", Current: true}},
			})
			time.Sleep(time.Second)
			synctest.Wait()
			now, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if before == nil || !os.SameFile(before, now) {
				writes++
			}
			before = now
		}
		if writes > 15 {
			t.Errorf("%d writes in ten minutes", writes)
		}
	})
}

// TestDamagedNodes checks that a file that cannot be used causes a warning, is kept, and has no other effect.
func TestDamagedNodes(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "torn": `[{"node":"a","add`, "another list": `[{"name":"a"}]`, "another file": "{}", "binary": "\x00\xff",
		"large":     "[" + strings.Repeat(" ", maxCacheSize) + "]",
		"too many":  "[" + strings.Repeat(`{"node":"a"},`, maxCached) + `{"node":"a"}]`,
		"directory": "",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "nodes")
			err := os.WriteFile(file, []byte(text), 0o600)
			if name == "directory" {
				err = errors.Join(os.Remove(file), os.Mkdir(file, 0o700))
			}
			if err != nil {
				t.Fatal(err)
			}
			r := newRanges(t)
			r.node("a", true, nil)
			l, log := r.remembering(file)
			if len(l.cache.nodes) > 0 || !strings.Contains(log.String(), "are not known") {
				t.Errorf("%v; the log is %s", l.cache.nodes, log)
			}
			r.call(l, "a")
			l.Close()
			if got, err := os.ReadFile(file); err != nil || !strings.Contains(string(got), `"node":"a"`) {
				t.Errorf("the file is %q: %v", got, err)
			}
			if got, err := os.ReadFile(file + ".damaged"); name != "directory" && (err != nil || string(got) != text) {
				t.Errorf("%d bytes are kept: %v", len(got), err)
			}
		})
	}
}

// LookupWithNode returns a lookup that finds T/n on node a, where no process listens, and a function that returns the number of cached
// nodes.
func LookupWithNode(t *testing.T) (l *Lookup, remembered func() int) {
	r := newRanges(t)
	r.node("a", true, nil)
	l, _ = r.remembering(filepath.Join(t.TempDir(), "nodes"))
	return l, func() int { return len(l.cache.nodes) }
}
