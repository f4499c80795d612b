package dirwatch

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mount mounts until the end of the test, and skips the test where that is not permitted.
func (r *rig) mount(source, target, fstype string, flags uintptr) (unmount func()) {
	r.t.Helper()
	target = filepath.Join(r.dir, target)
	if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
		if errors.Is(err, unix.EPERM) {
			r.t.Skipf("mounting takes CAP_SYS_ADMIN: %v", err)
		}
		r.t.Fatal(err)
	}
	unmount = func() { _ = unix.Unmount(target, unix.MNT_DETACH) }
	r.t.Cleanup(unmount)
	return unmount
}

// TestBindMount covers a directory by a mount, of which no file event tells, and sees it long before a safety scan.
func TestBindMount(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	r.w.scanInterval = time.Hour
	r.run(`
		> mkdir r/a/b; mkdir other/b; sock r/a/x; sock other/y; sock other/b/z`)
	for _, dir := range []string{"r/a/b", "r/a", "other/b", "other"} { // a change that their times do not show
		if err := os.Chtimes(filepath.Join(r.dir, dir), time.Time{}, time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	r.run(`
		> start
		+r/a/x`)
	unmount := r.mount(filepath.Join(r.dir, "other"), "r/a", "", unix.MS_BIND)
	r.settleOn("r/a/y", "r/a/b/z")
	r.run(`
		> sock r/a/w
		+r/a/w
		> rm other/w
		-r/a/w
		> degraded r/a; degraded r/a/b`)
	unmount()
	r.settleOn("r/a/x")
	r.run(`
		> sock r/a/b/w
		+r/a/b/w`)
	r.quiet()
}

// TestMountedAgain: a file system that is unmounted ends its watches without a word, and the same one may be back before anybody looks.
func TestMountedAgain(t *testing.T) {
	r := newRig(t, "r")
	r.do("mkdir r/a; mkdir store; sock store/x")
	if err := os.Chtimes(filepath.Join(r.dir, "store"), time.Time{}, time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	unmount := r.mount(filepath.Join(r.dir, "store"), "r/a", "", unix.MS_BIND)
	tree := newTree(r.w)
	defer tree.closeNotifier()
	defer func() { tree.closeMounts() }()
	tree.safetyScan()
	d := tree.dirs[filepath.Join(r.dir, "r/a")]
	before := d.mount
	if before == 0 {
		t.Skip("the system does not number mounts")
	}
	unmount()
	r.mount(filepath.Join(r.dir, "store"), "r/a", "", unix.MS_BIND)
	tree.safetyScan()
	if d.mount == before || !d.watched || len(d.socks) != 1 {
		t.Errorf("the mount was %d: %+v", before, d)
	}
}

// settleOn waits until exactly these sockets are known.
func (r *rig) settleOn(paths ...string) {
	r.t.Helper()
	r.settle()
	r.await("the change to be seen", func() bool {
		r.facts = nil
		for _, p := range paths {
			if _, ok := r.state[filepath.Join(r.dir, p)]; !ok {
				return false
			}
		}
		return len(r.state) == len(paths)
	})
}

// TestMountedTwice has one directory at two paths of the tree, for which the kernel has only one watch.
func TestMountedTwice(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	r.w.scanInterval = time.Hour
	r.do("mkdir r/a; mkdir r/b; sock r/a/x")
	unmount := r.mount(filepath.Join(r.dir, "r/a"), "r/b", "", unix.MS_BIND)
	r.start()
	r.settleOn("r/a/x", "r/b/x")
	r.degraded("r/b", "under another path too")
	r.do("sock r/b/y")
	r.settleOn("r/a/x", "r/a/y", "r/b/x", "r/b/y")
	r.do("rm r/a/x")
	r.settleOn("r/a/y", "r/b/y")
	unmount()
	r.settleOn("r/a/y")
	r.degraded("r/b", "")
}

// TestUnmountKillsWatch mounts the same file system again: the directory looks as before, but its watch has ended without a word.
func TestUnmountKillsWatch(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	r.do("mkdir r/a; mkdir src")
	r.mount("tmpfs", "src", "tmpfs", 0)
	src := filepath.Join(r.dir, "src")
	unmount := r.mount(src, "r/a", "", unix.MS_BIND)
	r.do("sock r/a/x")
	r.start()
	r.settleOn("r/a/x")
	unmount()
	r.mount(src, "r/a", "", unix.MS_BIND)
	r.do("sock r/a/y")
	r.settleOn("r/a/x", "r/a/y")
	r.quiet()
}

// TestUnreadable takes the permission to read a directory away for a while.
func TestUnreadable(t *testing.T) {
	r := newRig(t, "r")
	r.w.scanInterval = time.Hour
	r.w.pollInterval = 5 * time.Millisecond
	r.wrap = func(run func()) {
		runtime.LockOSThread() // and never unlocked, so the thread ends with the goroutine
		if unix.Getuid() == 0 {
			_ = unix.Setfsgid(65534)
			_ = unix.Setfsuid(65534) // without the power of root over files, for this thread
		}
		run()
	}
	r.run(`
		> chmod 755 .; mkdir r/a; mkdir r/b; sock r/a/x; sock r/b/y; chmod 0 r/a; start
		+r/b/y
		> degraded r/a give this user; chmod 755 r/a
		+r/a/x
		> degraded r/a; sock r/a/z
		+r/a/z
		> chmod 0 r/a; degraded r/a permission denied; rm r/a/x; sock r/a/w; chmod 755 r/a`)
	r.settleOn("r/b/y", "r/a/z", "r/a/w")
	r.do("degraded r/a; chmod 444 r/a; degraded r/a permission denied; sock r/a/v; rm r/a/z; chmod 755 r/a")
	r.settleOn("r/b/y", "r/a/v", "r/a/w")
	r.do("degraded r/a; chmod 0 r; degraded r permission denied; sock r/v; rm r/a/v; chmod 755 r")
	r.settleOn("r/b/y", "r/a/w", "r/v")
	r.do("degraded r; degraded r/a; degraded r/b")
	r.quiet()
}
