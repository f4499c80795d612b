package dirwatch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// BenchmarkRename measures the time from a socket's rename into a watched directory to the news of it, here and with bare fsnotify and stat.
func BenchmarkRename(b *testing.B) {
	run := func(b *testing.B, dir string, news <-chan string) {
		from, to := filepath.Join(dir, "out", "s"), filepath.Join(dir, "r", "s")
		if err := makeSocket(from); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := os.Rename(from, to); err != nil {
				b.Fatal(err)
			}
			for path := range news {
				if path == to {
					break
				}
			}
			b.StopTimer()
			if err := os.Rename(to, from); err != nil {
				b.Fatal(err)
			}
			for path := range news {
				if path == "" {
					break
				}
			}
			b.StartTimer()
		}
	}
	setup := func(b *testing.B, neighbours int) string {
		dir := b.TempDir()
		for _, name := range []string{"r", "out"} {
			if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		for i := range neighbours {
			if err := makeSocket(filepath.Join(dir, "r", fmt.Sprint(i))); err != nil {
				b.Fatal(err)
			}
		}
		return dir
	}

	for _, neighbours := range []int{0, 5000} {
		b.Run(fmt.Sprintf("bare-%d", neighbours), func(b *testing.B) {
			dir := setup(b, neighbours)
			w, err := fsnotify.NewWatcher()
			if err != nil {
				b.Fatal(err)
			}
			if err := w.Add(filepath.Join(dir, "r")); err != nil {
				b.Fatal(err)
			}
			news, done := make(chan string, 16), make(chan struct{})
			go func() {
				defer close(done)
				for ev := range w.Events {
					if info, err := sock.Stat(ev.Name); err == nil && info.IsSocket() {
						news <- ev.Name
					} else {
						news <- ""
					}
				}
			}()
			run(b, dir, news)
			_ = w.Close()
			<-done
		})
		b.Run(fmt.Sprintf("dirwatch-%d", neighbours), func(b *testing.B) {
			dir := setup(b, neighbours)
			news, ready := make(chan string, 16), make(chan struct{})
			w := newWatcher(b, func(u Update) {
				if ready != nil {
					close(ready)
					ready = nil
					return
				}
				for _, f := range u.Facts {
					if f.Present {
						news <- f.Path
					} else {
						news <- ""
					}
				}
			}, Root{Path: filepath.Join(dir, "r")})
			w.scanInterval, w.renameHold = time.Hour, time.Microsecond
			ctx, cancel := context.WithCancel(b.Context())
			done, started := make(chan error, 1), ready
			go func() { done <- w.Run(ctx) }()
			<-started
			run(b, dir, news)
			cancel()
			if err := <-done; err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkSafetyScan measures one safety scan that finds nothing to do.
func BenchmarkSafetyScan(b *testing.B) {
	for _, n := range []int{1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, "r")
			r.do("mkdir r/a; mkdir r/b; mkdir r/c")
			for i := range n {
				r.do(fmt.Sprintf("sock r/%c/%d", 'a'+i%3, i))
			}
			r.w.notify, r.w.MaxSockets, r.w.pollInterval = func(Update) {}, n, time.Hour
			t := newTree(r.w)
			defer t.closeNotifier()
			t.openNotifier()
			t.scanAll()
			for _, d := range t.dirs {
				d.reread = false
			}
			t.flush()
			b.ReportAllocs()
			for b.Loop() {
				t.safetyScan()
			}
		})
	}
}

// BenchmarkFirstScan measures what finding sockets at start costs.
func BenchmarkFirstScan(b *testing.B) {
	r := newRig(b, "r")
	r.do("mkdir r")
	for i := range 5000 {
		r.do(fmt.Sprintf("sock r/%d", i))
	}
	r.w.notify, r.w.pollInterval = func(Update) {}, time.Hour
	for b.Loop() {
		t := newTree(r.w)
		t.openNotifier()
		t.scanAll()
		t.flush()
		t.closeNotifier()
	}
}
