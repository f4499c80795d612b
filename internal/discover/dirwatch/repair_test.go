package dirwatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// quick makes the intervals short, where a test is about what only they find.
func (r *rig) quick() {
	r.w.scanInterval = 20 * time.Millisecond
	r.w.pollInterval = 5 * time.Millisecond
}

// TestRepairs has what takes a scan to notice.
func TestRepairs(t *testing.T) {
	for name, script := range map[string]string{
		"a root is missing at start": `
			> start; degraded r does not exist; mkdir r; sock r/x
			+r/x
			> degraded r; sock r/y
			+r/y`,
		"a root is removed and made again": `
			> mkdir r/a; sock r/a/x; start
			+r/a/x
			> rmall r
			-r/a/x
			> degraded r does not exist; mkdir r/a; sock r/a/y
			+r/a/y
			> degraded r; sock r/z
			+r/z`,
		"a root is renamed away and made again": `
			> mkdir r/a; sock r/a/x; start
			+r/a/x
			> mv r old
			-r/a/x
			> degraded r does not exist; sock old/a/y; mkdir r; sock r/x
			+r/x
			> degraded r`,
		"a root is a file": `
			> file r; start; degraded r not a directory; rm r; degraded r does not exist; mkdir r; sock r/x
			+r/x
			> degraded r`,
		"a root is a symbolic link that is pointed elsewhere": `
			> mkdir a; mkdir b; sock a/x; sock b/y; symlink a r; start
			+r/x
			> symlink b n; mv n r
			+r/y
			-r/x
			> rm b/y
			-r/y
			> sock a/z; sock b/z
			+r/z`,
		"a root is a dangling symbolic link": `
			> symlink a r; start; degraded r does not exist; mkdir a; sock a/x
			+r/x
			> degraded r`,
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "r")
			r.quick()
			r.run(script)
			r.quiet()
		})
	}
}

func TestFirstUpdateComesWithoutFacts(t *testing.T) {
	r := newRig(t, "r", "s")
	r.run("> mkdir r; mkdir s; start")
	if len(r.update.Facts) != 0 || len(r.update.Degraded) != 0 || r.updates != 1 {
		t.Errorf("%d updates, the last one %+v", r.updates, r.update)
	}
	r.stop()
	r.do("sock s/x")
	r.start()
	r.want("+s/x")
}

func TestRoots(t *testing.T) {
	r := newRig(t, "r", "s")
	r.w.scanInterval = time.Hour
	r.w.roots[1].Skip = []string{"kubernetes.io", "a/no"}
	r.run(`
		> mkdir r/kubernetes.io; mkdir s/kubernetes.io/a; sock r/kubernetes.io/x; sock s/kubernetes.io/x; sock s/kubernetes.io/a/x; start
		+r/kubernetes.io/x
		> mkdir s/a; sock s/a/no; sock s/a/yes
		+s/a/yes
		> sock s/kubernetes.io/y; sock s/no
		+s/no
		> mv s/no r/x
		+r/x<s/no
		> mv r/x s/kubernetes.io/z
		-r/x`)
	r.quiet()
}

func TestBounds(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	r.w.MaxDepth = 2
	r.w.MaxSockets = 3
	r.run(`
		> mkdir r/a/b/c; sock r/a/b/c/x; sock r/a/b/y; start
		+r/a/b/y
		> degraded r/a/b more than 2 levels; rmall r/a/b/c; degraded r/a/b
		> mkdir r/m; sock r/m/1; sock r/m/2; sock r/m/3
		+r/m/1
		+r/m/2
		+r/m/3
		> sock r/m/4; degraded r/m more than 3 sockets; sock r/a/x
		+r/a/x
		> rm r/m/1
		-r/m/1
		+r/m/4
		> degraded r/m`)
	r.quiet()
}

// TestSameTick changes a directory without a trace in its modification time, while nothing can be watched.
func TestSameTick(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	r.w.open = func() (*notifier, error) { return nil, errors.New("none today") }
	r.do("mkdir r; start")
	r.degraded("r", "none today")
	dir := r.w.roots[0].Path
	fi, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	r.do("sock r/x")
	if err := os.Chtimes(dir, time.Time{}, fi.ModTime()); err != nil {
		t.Fatal(err)
	}
	r.want("+r/x")
}

// limited is a notifier that refuses with err while limit is set.
func limited(limit *atomic.Bool, err error) func() (*notifier, error) {
	return func() (*notifier, error) {
		n, oerr := openNotifier()
		if oerr != nil {
			return nil, oerr
		}
		add := n.add
		n.add = func(path string) error {
			if limit.Load() && filepath.Base(path) != "r" {
				return err
			}
			return add(path)
		}
		return n, nil
	}
}

func TestWatchLimit(t *testing.T) {
	var limit atomic.Bool
	limit.Store(true)
	r := newRig(t, "r")
	r.quick()
	r.w.open = limited(&limit, syscall.ENOSPC)
	r.run(`
		> mkdir r/a/b; sock r/a/x; start
		+r/a/x
		> degraded r/a fs.inotify.max_user_watches; sock r/a/b/y
		+r/a/b/y
		> mv r/a/b/y r/z
		+r/z<r/a/b/y
		> rm r/a/x
		-r/a/x`)
	limit.Store(false)
	r.run(`
		> degraded r/a; degraded r/a/b`)
	r.quiet()
}

func TestInstanceLimit(t *testing.T) {
	var limit atomic.Bool
	limit.Store(true)
	r := newRig(t, "r")
	r.quick()
	r.w.open = func() (*notifier, error) {
		if limit.Load() {
			return nil, syscall.EMFILE
		}
		return openNotifier()
	}
	r.run(`
		> mkdir r/a; sock r/a/x; start
		+r/a/x
		> degraded r fs.inotify.max_user_instances; sock r/a/y
		+r/a/y
		> rm r/a/x
		-r/a/x`)
	limit.Store(false)
	r.degraded("r", "")
	r.quiet()
}

// TestEventsEnd has the source of events break down.
func TestEventsEnd(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	broken := make(chan event)
	first := true
	r.w.open = func() (*notifier, error) {
		n, err := openNotifier()
		if err == nil && first {
			first = false
			n.events = broken
		}
		return n, err
	}
	r.do("mkdir r; start")
	close(broken)
	r.do("sock r/x")
	r.want("+r/x")
	r.degraded("r", "")
	r.quiet()
}

// TestOverflow fills the kernel's queue with 60,000 unrelated files while the watcher is stuck, and changes sockets meanwhile.
func TestOverflow(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only inotify has a queue that overflows")
	}
	r := newRig(t, "r")
	r.w.scanInterval = time.Hour
	var lost atomic.Bool
	gate := make(chan struct{})
	r.w.notify = func(u Update) {
		r.notify(u)
		for _, c := range u.Degraded {
			if strings.Contains(c.Reason, "lost") {
				lost.Store(true)
			}
		}
		if u.Scanned && len(u.Facts) == 1 {
			<-gate
		}
	}
	r.do("mkdir r/d")
	for i := range 50 {
		r.do(fmt.Sprintf("sock r/d/%d", i))
	}
	r.start()
	r.settle()
	r.do("sock r/stuck")
	r.want("+r/stuck")
	files := filepath.Join(r.dir, "r/d")
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			for i := range 30_000 {
				f, err := os.Create(fmt.Sprintf("%s/f%d-%d", files, g, i))
				if err != nil {
					t.Error(err)
					return
				}
				_ = f.Close()
			}
		})
	}
	wg.Wait()
	r.do("rm r/d/7; mv r/d/8 r/d/80; mkdir r/d/new/er; sock r/d/new/er/x; rm r/d/9; sock r/d/9")
	close(gate)
	r.settle()
	r.degraded("r", "")
	r.do("sock r/d/new/y")
	r.await("r/d/new/y", func() bool { _, ok := r.state[filepath.Join(files, "new/y")]; return ok })
	if !lost.Load() {
		t.Error("no events were lost, so this tested nothing")
	}
}

// TestStorm has doubt without end: events go on to be handled and the scans stay few.
func TestStorm(t *testing.T) {
	lost := make(chan struct{})
	var opened atomic.Int32
	r := newRig(t, "r")
	r.w.scanInterval = time.Hour
	r.w.open = func() (*notifier, error) {
		opened.Add(1)
		n, err := openNotifier()
		if err == nil {
			n.lost = lost
		}
		return n, err
	}
	r.do("mkdir r; start")
	start := time.Now()
	for i := range 1000 {
		lost <- struct{}{}
		if i%100 == 0 {
			r.do(fmt.Sprintf("sock r/%d", i))
			r.want(fmt.Sprintf("+r/%d", i))
		}
	}
	if n, most := int(opened.Load()), 2+int(time.Since(start)/lossGap)+1; n > most {
		t.Errorf("%d scans, want at most %d", n, most)
	}
	r.degraded("r", "")
}

// TestBurst renames many sockets in at once.
func TestBurst(t *testing.T) {
	const n = 5000
	r := newRig(t, "r")
	r.w.scanInterval = time.Hour
	r.do("mkdir r; mkdir out; start")
	for i := range n {
		r.do(fmt.Sprintf("sock out/%d", i))
	}
	for i := range n {
		r.do(fmt.Sprintf("mv out/%d r/%d", i, i))
	}
	r.settle()
	if len(r.state) != n {
		t.Errorf("%d sockets, want %d", len(r.state), n)
	}
	r.do("mv r r2; mkdir r")
	r.await("that all are gone", func() bool { return len(r.state) == 0 })
}

func TestNewRefuses(t *testing.T) {
	notify := func(Update) {}
	for want, roots := range map[string][]Root{
		"at least one root":  nil,
		"not absolute":       {{}},
		"and clean":          {{Path: "/a/"}},
		"contain each other": {{Path: "/a"}, {Path: "/b"}, {Path: "/a/b"}},
	} {
		if _, err := New(notify, roots...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
	if _, err := New(nil, Root{Path: "/a"}); err == nil || !strings.Contains(err.Error(), "notify is nil") {
		t.Errorf("New: %v", err)
	}
	w := newWatcher(t, notify, Root{Path: "/a"}, Root{Path: "/ab"})
	w.MaxDepth = -1
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "must be positive") {
		t.Errorf("Run: %v", err)
	}
}
