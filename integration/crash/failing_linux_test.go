package crash_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

const (
	// patience is how long a test waits for what should happen soon before it fails.
	patience  = 2 * time.Minute
	stateFile = "state.db"
	ptype     = "ExamplePlugin"
)

// patchbay is the path of the program.
var patchbay string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "patchbay-crash")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		patchbay = filepath.Join(dir, "patchbay")
		if err := programs.Build(context.Background(), "../..", dir, false, "./cmd/patchbay"); err != nil {
			fmt.Fprintln(os.Stderr, "cannot build what is to be tested:", err)
			return 1
		}
		return m.Run()
	}())
}

// scenario is one way in which a device fails.
type scenario struct {
	// errno is in what the daemon says.
	errno syscall.Errno
	// fail makes it fail, repair work again. Without repair the device fails once.
	fail, repair func()
}

func TestFailingDevice(t *testing.T) {
	requireRoot(t)
	always := func(errno syscall.Errno, ops ...operation) func(operation, int64) syscall.Errno {
		return func(op operation, _ int64) syscall.Errno {
			if slices.Contains(ops, op) {
				return errno
			}
			return 0
		}
	}
	for name, test := range map[string]struct {
		errno syscall.Errno
		fault func() func(operation, int64) syscall.Errno
		once  bool
		// evict has the kernel forget what it has read of the file.
		evict bool
	}{
		"Write":    {errno: syscall.EIO, fault: func() func(operation, int64) syscall.Errno { return always(syscall.EIO, opWrite) }},
		"Sync":     {errno: syscall.EIO, fault: func() func(operation, int64) syscall.Errno { return always(syscall.EIO, opSync) }},
		"ReadOnly": {errno: syscall.EROFS, fault: func() func(operation, int64) syscall.Errno { return always(syscall.EROFS, opWrite, opOpen) }},
		"Read":     {fault: func() func(operation, int64) syscall.Errno { return always(syscall.EIO, opRead) }, evict: true},
		"ReadBehindTheMetaPages": {evict: true, fault: func() func(operation, int64) syscall.Errno {
			return func(op operation, offset int64) syscall.Errno {
				if op == opRead && offset >= 2*pageSize {
					return syscall.EIO
				}
				return 0
			}
		}},
		"FullWithinATransaction": {errno: syscall.ENOSPC, fault: func() func(operation, int64) syscall.Errno {
			writes := 0
			return func(op operation, _ int64) syscall.Errno {
				if op != opWrite {
					return 0
				}
				if writes++; writes == 1 {
					return 0
				}
				return syscall.ENOSPC
			}
		}},
		"SyncOfDataOnce": {errno: syscall.EIO, once: true, fault: func() func(operation, int64) syscall.Errno {
			failed := false
			return func(op operation, _ int64) syscall.Errno {
				if op != opSync || failed {
					return 0
				}
				failed = true
				return syscall.EIO
			}
		}},
		"SyncOfMetaPageOnce": {errno: syscall.EIO, once: true, fault: func() func(operation, int64) syscall.Errno {
			failed, meta := false, false
			return func(op operation, offset int64) syscall.Errno {
				if op == opWrite {
					meta = offset < 2*pageSize
				}
				if op != opSync || !meta || failed {
					return 0
				}
				failed = true
				return syscall.EIO
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			device := mountDevice(t)
			state := filepath.Join(device.mount, stateFile)
			s := scenario{errno: test.errno}
			before := 0
			s.fail = func() {
				device.mu.Lock()
				before = len(device.kept)
				device.mu.Unlock()
				device.fail(test.fault())
				if test.evict {
					evict(t, state)
				}
			}
			if !test.once {
				s.repair = func() { device.fail(nil) }
			}
			s.run(t, state)

			// The power may fail at any moment: then what is on the disk counts.
			device.unmount(t)
			for i, content := range device.kept[before:] {
				copied := filepath.Join(t.TempDir(), stateFile)
				if err := os.WriteFile(copied, content, 0o600); err != nil {
					t.Fatal(err)
				}
				names := storedNames(t, copied)
				if !slices.Contains(names, "a") {
					t.Errorf("after sync %d the disk has %v", i, names)
				}
			}
			last := filepath.Join(t.TempDir(), stateFile)
			if err := os.WriteFile(last, device.disk[stateFile], 0o600); err != nil {
				t.Fatal(err)
			}
			checkNames(t, last, "a", "c", "d")
			checkNames(t, filepath.Join(device.cache, stateFile), "a", "c", "d")
		})
	}
}

// TestFullDevice fills a real file system.
func TestFullDevice(t *testing.T) {
	requireRoot(t)
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no tmpfs to be had: %v", err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	filler := filepath.Join(dir, "filler")
	s := scenario{
		errno: syscall.ENOSPC,
		fail: func() {
			if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("a file of 1 MiB was written: %v", err)
			}
		},
		repair: func() {
			if err := os.Remove(filler); err != nil {
				t.Error(err)
			}
		},
	}
	s.run(t, filepath.Join(dir, stateFile))
	checkNames(t, filepath.Join(dir, stateFile), "a", "c", "d")
}

// TestRemount has a real file system find an error, upon which the kernel makes it read-only, and unmounts and mounts it again while the
// daemon runs.
func TestRemount(t *testing.T) {
	requireRoot(t)
	t.Parallel()
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 8<<20)); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) error {
		if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, output)
		}
		return nil
	}
	mount := func() error { return run("mount", "-o", "loop,errors=remount-ro", image, dir) }
	if err := errors.Join(run("mkfs.ext4", "-q", image), mount()); err != nil {
		t.Skipf("no ext4 file system to be had: %v", err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^/dev/(\S+) ` + regexp.QuoteMeta(dir) + ` `).FindSubmatch(mounts)
	if found == nil {
		t.Fatalf("%s is not mounted:\n%s", dir, mounts)
	}
	trigger := filepath.Join("/sys/fs/ext4", string(found[1]), "trigger_fs_error")
	if _, err := os.Stat(trigger); err != nil {
		t.Skipf("no way to have ext4 find an error: %v", err)
	}
	s := scenario{
		errno: syscall.EROFS,
		fail: func() {
			if err := os.WriteFile(trigger, []byte("test"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		repair: func() {
			unmount(t, dir)
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("while nothing is mounted there is %v, %v", entries, err)
			}
			if err := mount(); err != nil {
				t.Error(err)
			}
		},
	}
	s.run(t, filepath.Join(dir, stateFile))
	checkNames(t, filepath.Join(dir, stateFile), "a", "c", "d")
}

// run runs a daemon through the scenario and kills it. Plugin a is registered before, c and d after the failure; b goes meanwhile, and
// others whose names begin with "filler" may come.
func (s *scenario) run(t *testing.T, state string) {
	t.Helper()
	d := startDaemon(t, state)
	a, b := d.serve("a"), d.serve("b")
	d.await("registered", "a")
	d.await("registered", "b")
	s.fail()
	// Where there is room within the file, some more plugins may find a place.
	c, name := d.serve("c"), "c"
	failure, registered := d.either("c")
	for i := 0; registered; i++ {
		if i > 500 {
			t.Fatal("500 plugins were registered on a device that fails")
		}
		name = fmt.Sprint("filler-", i)
		c = d.serve(name)
		failure, registered = d.either(name)
	}
	if !strings.Contains(failure.Message, "cannot save the registration") ||
		s.errno != 0 && !strings.Contains(failure.Message, s.errno.Error()) {
		t.Errorf("%s failed with %q, want %q", name, failure.Message, s.errno)
	}
	d.await("degraded", "")
	if s.repair != nil {
		d.checkFailing(name, c)
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		d.await("deregistered", "b")
		s.repair()
	} else if err := b.Stop(); err != nil {
		t.Error(err)
	}
	d.await("registered", name)
	if status := receive(t, c); !status.GetPluginRegistered() {
		t.Errorf("%s was told %v", name, status)
	}
	d.await("recovered", "")
	if code, body := d.get("/readyz"); code != http.StatusOK {
		t.Errorf("after the device works again /readyz says %d %s", code, body)
	}
	if _, body := d.get("/metrics"); !strings.Contains(body, `patchbay_condition_degraded{condition="state"} 0`) {
		t.Error("the metric of the condition is not 0")
	}
	d.serve("d")
	d.await("registered", "d")
	if status := receive(t, a); !status.GetPluginRegistered() || len(a.Statuses()) > 0 {
		t.Errorf("a was told %v, and %d more", status, len(a.Statuses()))
	}
	if n := d.count("degraded"); n != 1 {
		t.Errorf("%d events say that the state is degraded", n)
	}
	d.kill()
}

// plugin is an example plugin in this process.
type plugin interface {
	Stop() error
	Statuses() <-chan *registerapi.RegistrationStatus
}

func receive(t *testing.T, p plugin) *registerapi.RegistrationStatus {
	t.Helper()
	select {
	case status := <-p.Statuses():
		return status
	case <-time.After(patience):
		t.Fatal("the plugin is told nothing")
		return nil
	}
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount file systems")
	}
}

// evict has the kernel forget what it has read of a FUSE file, which it does when the file is opened.
func evict(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

// unmount unmounts a file system, which somebody may be using for a moment.
func unmount(t *testing.T, dir string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := syscall.Unmount(dir, 0)
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EBUSY) || time.Since(began) > patience {
			t.Errorf("cannot unmount %s: %v", dir, err)
			return
		}
	}
}

// checkNames checks that a state file has the plugins of the given names, and no others but b, which goes as soon as that can be saved, and
// those that filled the file.
func checkNames(t *testing.T, path string, want ...string) {
	t.Helper()
	got := slices.DeleteFunc(storedNames(t, path), func(name string) bool { return name == "b" || strings.HasPrefix(name, "filler") })
	if !slices.Equal(got, want) {
		t.Errorf("%s has %v, want %v", path, got, want)
	}
}

// storedNames returns the names of the plugins in a state file, sorted.
func storedNames(t *testing.T, path string) []string {
	t.Helper()
	store, err := boltstate.Open(path)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer store.Close()
	state, err := store.GetDynamicPluginRegistryState()
	if err != nil {
		t.Error(err)
		return nil
	}
	var names []string
	for name := range state.Plugins[ptype] {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
