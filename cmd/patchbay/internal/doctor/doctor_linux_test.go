package doctor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// healthy returns a subject with nothing wrong.
func healthy(t *testing.T) Subject {
	t.Helper()
	dir := t.TempDir()
	plugins := filepath.Join(dir, "plugins")
	if err := os.Mkdir(plugins, 0o750); err != nil {
		t.Fatal(err)
	}
	try(t, os.Chmod(filepath.Dir(dir), 0o755)) // other users look into it
	return Subject{
		PluginDirs:    []string{plugins},
		StatePath:     filepath.Join(dir, "state.db"),
		ControlSocket: filepath.Join(dir, "c.sock"),
	}
}

// TestFaultsAreFound provokes one fault after the other, on this machine and not in a model of it.
func TestFaultsAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		provoke func(t *testing.T, s *Subject)
		// user is who looks, if not this process's.
		user   int
		check  string
		status Status
		says   string
		remedy string
	}{
		"nothing": {
			provoke: func(*testing.T, *Subject) {},
			check:   "plugin-dirs", status: OK, says: "exists",
		},
		"permissions: directory that cannot be read": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.Chmod(s.PluginDirs[0], 0o700)) },
			user:    nobody,
			check:   "plugin-dirs", status: Fail, says: "(mode 0700, owner 0) cannot be read by user 54321", remedy: "chmod 0750 ",
		},
		"permissions: directory that cannot be written": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.Chmod(s.PluginDirs[0], 0o755)) },
			user:    nobody,
			check:   "plugin-dirs", status: Warn, says: "(mode 0755, owner 0) cannot be written by user 54321", remedy: "chown 54321 ",
		},
		"permissions: directory behind one that cannot be passed": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.Chmod(filepath.Dir(s.PluginDirs[0]), 0o700)) },
			user:    nobody,
			check:   "plugin-dirs", status: Fail, says: "cannot be inspected: permission denied", remedy: "parent directories accessible",
		},
		"permissions: socket that cannot be opened": {
			provoke: func(t *testing.T, s *Subject) {
				try(t, os.Chmod(s.PluginDirs[0], 0o755))
				path := filepath.Join(s.PluginDirs[0], "roots.sock")
				listen(t, path)
				try(t, os.Chmod(path, 0o600))
			},
			user:  nobody,
			check: "sockets", status: Fail, says: "1 of 1 sockets cannot be opened by user 54321", remedy: "CAP_DAC_OVERRIDE",
		},
		"permissions: state that cannot be read": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.WriteFile(s.StatePath, nil, 0o600)) },
			user:    nobody,
			check:   "state", status: Fail, says: "cannot be read and written by user 54321", remedy: "chown it to the daemon's user",
		},
		"permissions: control socket that cannot be opened": {
			provoke: func(t *testing.T, s *Subject) {
				listen(t, s.ControlSocket)
				try(t, os.Chmod(s.ControlSocket, 0o600))
			},
			user:  nobody,
			check: "control-socket", status: Fail, says: "cannot be reached", remedy: "run this as root",
		},
		"limits: no inotify instance is left": {
			provoke: func(*testing.T, *Subject) {},
			user:    crowded,
			check:   "inotify", status: Warn, says: "no inotify instance is available: too many open files", remedy: "fs.inotify.max_user_instances",
		},
		"stale socket": {
			provoke: func(t *testing.T, s *Subject) { staleSocket(t, filepath.Join(s.PluginDirs[0], "old.sock")) },
			check:   "sockets", status: Warn, says: `1 of 1 sockets are stale: no process accepts on them: ["`, remedy: "remove the sockets",
		},
		"stale control socket": {
			provoke: func(t *testing.T, s *Subject) { staleSocket(t, s.ControlSocket) },
			check:   "control-socket", status: Fail, says: "is stale: its daemon has exited", remedy: "start the daemon",
		},
		"full disk: state": {
			provoke: func(t *testing.T, s *Subject) {
				disk := tinyDisk(t, "size=64k")
				s.StatePath = filepath.Join(disk, "state.db")
				_ = os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 1<<20), 0o600) // until it is full
			},
			check: "state", status: Fail, says: "is full: no registration can be saved", remedy: "make room",
		},
		"full disk: plugin directory": {
			provoke: func(t *testing.T, s *Subject) {
				s.PluginDirs[0] = tinyDisk(t, "size=64k,mode=0750")
				_ = os.WriteFile(filepath.Join(s.PluginDirs[0], "filler"), make([]byte, 1<<20), 0o600)
			},
			check: "plugin-dirs", status: Fail, says: "is full: no plugin can create a socket", remedy: "make room",
		},
		"full disk: inodes": {
			provoke: func(t *testing.T, s *Subject) {
				s.PluginDirs[0] = tinyDisk(t, "nr_inodes=2,mode=0750")
				try(t, os.WriteFile(filepath.Join(s.PluginDirs[0], "filler"), nil, 0o600))
			},
			check: "plugin-dirs", status: Fail, says: "has no free inodes", remedy: "remove files",
		},
		"full disk: read-only": {
			provoke: func(t *testing.T, s *Subject) { s.StatePath = filepath.Join(tinyDisk(t, "size=64k,ro"), "state.db") },
			check:   "state", status: Fail, says: "is read-only", remedy: "mount it writable",
		},
		"wrong owner: directory writable by everyone": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.Chmod(s.PluginDirs[0], 0o777)) },
			check:   "plugin-dirs", status: Fail, says: "written by everyone", remedy: "chmod 0750 ",
		},
		"wrong owner: directory like that of temporary files": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.Chmod(s.PluginDirs[0], os.ModeSticky|0o777)) },
			check:   "plugin-dirs", status: Fail, says: "written by everyone (mode 1777)", remedy: "chmod 0750 ",
		},
		"wrong owner: directory of somebody else": {
			provoke: func(t *testing.T, s *Subject) {
				asRoot(t)
				try(t, os.Chown(s.PluginDirs[0], 12345, 12345))
			},
			check: "plugin-dirs", status: Fail, says: "belongs to user 12345", remedy: "chown it to root",
		},
		"wrong owner: socket of somebody else": {
			provoke: func(t *testing.T, s *Subject) {
				asRoot(t)
				path := filepath.Join(s.PluginDirs[0], "theirs.sock")
				listen(t, path)
				try(t, os.Chown(path, 12345, 12345))
			},
			check: "sockets", status: Warn, says: "theirs.sock belongs to user 12345", remedy: "trust.owners.users",
		},
		"wrong owner: state that others may write": {
			provoke: func(t *testing.T, s *Subject) {
				try(t, os.WriteFile(s.StatePath, nil, 0o600))
				try(t, os.Chmod(s.StatePath, 0o666))
			},
			check: "state", status: Fail, says: "written by others", remedy: "chmod 0600 ",
		},
		"unreachable etcd: one member of two": {
			provoke: func(_ *testing.T, s *Subject) {
				s.Fleet = etcd(fleet.Member{Endpoint: "https://a:1", Cluster: 1}, fleet.Member{Endpoint: "https://b:1", Err: errors.New("away")})
			},
			check: "fleet", status: Warn, says: "etcd https://b:1: away", remedy: "fleet.etcd.endpoints",
		},
		"unreachable etcd: all": {
			provoke: func(_ *testing.T, s *Subject) {
				s.Fleet = etcd(fleet.Member{Endpoint: "https://b:1", Err: errors.New("away")})
			},
			check: "fleet", status: Fail, says: "etcd https://b:1: away", remedy: "fleet.etcd.endpoints",
		},
		"clock: before the last write": {
			provoke: func(t *testing.T, s *Subject) {
				try(t, os.WriteFile(s.StatePath, nil, 0o600))
				later := time.Now().Add(48 * time.Hour)
				try(t, os.Chtimes(s.StatePath, later, later))
			},
			check: "clock", status: Warn, says: "the clock was set back", remedy: "timedatectl set-ntp true",
		},
		"two daemons: the control socket is served": {
			provoke: func(t *testing.T, s *Subject) { listen(t, s.ControlSocket) },
			check:   "control-socket", status: OK, says: fmt.Sprintf("a daemon (pid %d) serves", os.Getpid()),
		},
		"two daemons: the control socket is served by something else": {
			provoke: func(t *testing.T, s *Subject) {
				listen(t, s.ControlSocket)
				s.Daemon = func(context.Context) (int, error) { return 0, errors.New("no such thing") }
			},
			check: "control-socket", status: Fail, says: "does not answer as a daemon", remedy: "end it if it hangs",
		},
		"two daemons: the state is in use": {
			provoke: func(t *testing.T, s *Subject) { lock(t, s.StatePath) },
			check:   "other-daemons", status: Fail, says: fmt.Sprintf("is in use by process %d (", os.Getpid()), remedy: "its own --state",
		},
		"two daemons: not if it is the one": {
			provoke: func(t *testing.T, s *Subject) {
				lock(t, s.StatePath)
				listen(t, s.ControlSocket)
			},
			check: "other-daemons", status: OK, says: "no other process",
		},
		"two daemons: the one that answers is not the one that has the state": {
			provoke: func(t *testing.T, s *Subject) {
				lock(t, s.StatePath)
				listen(t, s.ControlSocket)
				s.Daemon = func(context.Context) (int, error) { return 1, nil }
			},
			check: "other-daemons", status: Fail, says: "is in use by process", remedy: "end that daemon",
		},
		"unreadable catalogue: no program": {
			provoke: func(_ *testing.T, s *Subject) {
				s.Plugins = []catalogue.Plugin{{Name: "p", Command: []string{filepath.Join(s.PluginDirs[0], "none")}}}
			},
			check: "catalogue", status: Fail, says: "of plugin p does not exist", remedy: "install it",
		},
		"unreadable catalogue: not in PATH": {
			provoke: func(_ *testing.T, s *Subject) {
				s.Plugins = []catalogue.Plugin{{Name: "p", Command: []string{"no-such-program-anywhere"}}}
			},
			check: "catalogue", status: Fail, says: "is not in PATH", remedy: "absolute path",
		},
		"unreadable catalogue: not executable": {
			provoke: func(t *testing.T, s *Subject) { program(t, s, 0o644) },
			check:   "catalogue", status: Fail, says: "cannot be executed by user", remedy: "chmod 0755 ",
		},
		"unreadable catalogue: no interpreter": {
			provoke: func(t *testing.T, s *Subject) {
				program(t, s, 0o755)
				try(t, os.WriteFile(s.Plugins[0].Command[0], []byte("#!/no/such/interpreter\n"), 0))
			},
			check: "catalogue", status: Fail, says: "the interpreter /no/such/interpreter", remedy: "install what is missing",
		},
		"unreadable catalogue: a directory": {
			provoke: func(_ *testing.T, s *Subject) {
				s.Plugins = []catalogue.Plugin{{Name: "p", Command: []string{s.PluginDirs[0]}}}
			},
			check: "catalogue", status: Fail, says: "cannot be run: is a directory", remedy: "first word",
		},
		"unreadable catalogue: not readable": {
			provoke: func(t *testing.T, s *Subject) {
				program(t, s, 0o711)
				s.Plugins[0].SHA256 = strings.Repeat("0", 64)
			},
			user:  nobody,
			check: "catalogue", status: Fail, says: "cannot be read to check its digest", remedy: "chmod 0755 ",
		},
		"unreadable catalogue: another program": {
			provoke: func(t *testing.T, s *Subject) {
				program(t, s, 0o755)
				s.Plugins[0].SHA256 = strings.Repeat("0", 64)
			},
			check: "catalogue", status: Fail, says: "and not 0000", remedy: "install the program that is expected",
		},
		"unreadable catalogue: not if it is the one": {
			provoke: func(t *testing.T, s *Subject) {
				program(t, s, 0o755)
				s.Plugins[0].SHA256 = fmt.Sprintf("%X", sha256.Sum256([]byte("#!/bin/sh\n")))
			},
			check: "catalogue", status: OK, says: "the programs of 1 plugins",
		},
		"unreadable catalogue: program that everyone may write": {
			provoke: func(t *testing.T, s *Subject) { program(t, s, 0o777) },
			check:   "catalogue", status: Fail, says: "can be written by every user", remedy: "chmod 0755 ",
		},
		"directory that is a file": {
			provoke: func(t *testing.T, s *Subject) {
				s.PluginDirs[0] = filepath.Join(s.PluginDirs[0], "file")
				try(t, os.WriteFile(s.PluginDirs[0], nil, 0o600))
			},
			check: "plugin-dirs", status: Fail, says: "is not a directory", remedy: "remove it",
		},
		"directory that is not there yet": {
			provoke: func(_ *testing.T, s *Subject) { s.PluginDirs[0] = filepath.Join(s.PluginDirs[0], "a", "b") },
			check:   "plugin-dirs", status: OK, says: "can be created",
		},
		"state that is a directory": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.Mkdir(s.StatePath, 0o700)) },
			check:   "state", status: Fail, says: "not a regular file", remedy: "another path",
		},
		"control socket that is a file": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.WriteFile(s.ControlSocket, nil, 0o600)) },
			check:   "control-socket", status: Fail, says: "is not a socket", remedy: "remove it",
		},
		"control socket with a long path": {
			provoke: func(_ *testing.T, s *Subject) { s.ControlSocket = "/" + strings.Repeat("x", 200) },
			check:   "control-socket", status: Fail, says: "201 bytes", remedy: "a shorter one",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy(t)
			var findings []Finding
			if tc.user == 0 {
				tc.provoke(t, &s)
				findings = Examine(t.Context(), s)
			} else {
				asRoot(t)
				tc.provoke(t, &s)
				asUser(t, tc.user, func() { findings = Examine(t.Context(), s) })
			}
			for _, f := range findings {
				if f.Check == tc.check && f.Status == tc.status && strings.Contains(f.Message, tc.says) {
					if !strings.Contains(f.Remedy, tc.remedy) || (f.Status == OK) != (f.Remedy == "") {
						t.Errorf("%+v has not the remedy %q", f, tc.remedy)
					}
					return
				}
			}
			t.Errorf("no finding of %s is %s and says %q: %+v", tc.check, tc.status, tc.says, findings)
		})
	}
}

func TestFewOpenFilesAreFound(t *testing.T) {
	var old unix.Rlimit
	try(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	if old.Max < fewOpenFiles {
		t.Skip("the limit is low here already")
	}
	if f := checkFileLimit(old); f.Status != OK {
		t.Errorf("with the limit of this machine: %+v", f)
	}
	if f := checkFileLimit(unix.Rlimit{Cur: 256, Max: 1024}); f.Status != Warn || !strings.Contains(f.Message, "1024") {
		t.Errorf("with a limit of 1,024: %+v", f)
	}
}

func TestOldKernelIsFound(t *testing.T) {
	for release, want := range map[string]Status{
		"4.19.0-27-amd64": Fail, "5.4.0": Fail, "5.13.19": Fail, "5.14.0-362.el9.x86_64": OK, "5.15": OK, "6.1.0-18-amd64": OK, "10.0-rc1": OK,
		"linux": Warn, "": Warn,
	} {
		if f := checkRelease(release); f.Status != want || want == Fail && (!strings.Contains(f.Message, release) || f.Remedy == "") {
			t.Errorf("%q: %+v", release, f)
		}
	}
	if f := checkKernel(t.Context(), Subject{}); f[0].Status == Fail {
		t.Errorf("the kernel of this machine: %+v", f)
	}
}

func TestMissingKernelFeatureIsFound(t *testing.T) {
	saved := features[0].probe
	t.Cleanup(func() { features[0].probe = saved })
	features[0].probe = func() error { return unix.ENOSYS }
	findings := checkKernel(t.Context(), Subject{})
	if len(findings) != 1 || findings[0].Status != Warn || !strings.Contains(findings[0].Message, "pidfd") {
		t.Errorf("without pidfd: %+v", findings)
	}
}

func TestCgroups(t *testing.T) {
	const (
		v2     = "30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
		v1     = "31 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
		hybrid = v1 + "30 24 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
	)
	for name, tc := range map[string]struct {
		mounts, membership string
		controllers        []string
		denied             error
		groups, limits     Status
		says, limitsSay    string
	}{
		"unified": {v2, "0::/system.slice/patchbay.service\n", []string{"cpu", "memory"}, nil, OK, OK,
			"/sys/fs/cgroup/system.slice/patchbay.service", "memory by version 2 and cpu by version 2"},
		"not delegated":       {v2, "0::/a\n", []string{"pids"}, nil, OK, Warn, "/sys/fs/cgroup/a", "cannot limit memory and cpu"},
		"hybrid":              {hybrid, "4:memory:/x\n0::/\n", nil, nil, OK, Warn, "hybrid", "cannot limit cpu"},
		"hybrid, one by each": {hybrid, "4:memory:/x\n0::/\n", []string{"cpu"}, nil, OK, OK, "hybrid", "memory by version 1 and cpu by version 2"},
		"version 1":           {v1, "4:memory:/x\n", nil, nil, Warn, Warn, "mounted: version 1", "cannot limit cpu"},
		"none":                {"", "", nil, nil, Warn, Warn, "mounted: none", "cannot limit memory and cpu"},
		"not writable":        {v2, "0::/user.slice\n", []string{"cpu", "memory"}, unix.EACCES, Warn, Warn, "permission denied", "cannot limit memory and cpu"},
		"nonsense":            {"x - \n - cgroup2\n", "\n", nil, nil, Warn, Warn, "mounted: none", "cannot"},
	} {
		t.Run(name, func(t *testing.T) {
			system := cgroupfs.Parse(tc.mounts, tc.membership)
			writable := func(string) error { return tc.denied }
			if f := checkCreateGroups(system, writable); f.Status != tc.groups || !strings.Contains(f.Message, tc.says) {
				t.Errorf("finding is %+v, want %s and %q", f, tc.groups, tc.says)
			}
			f := checkLimits(system, func(string) []string { return tc.controllers }, writable)
			if f.Status != tc.limits || !strings.Contains(f.Message, tc.limitsSay) {
				t.Errorf("finding is %+v, want %s and %q", f, tc.limits, tc.limitsSay)
			}
		})
	}
}

func TestClock(t *testing.T) {
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		now, written time.Time
		synchronised bool
		want         Status
	}{
		{now, time.Time{}, true, OK},
		{now, now.Add(time.Second), true, OK},
		{now, now.Add(time.Hour), true, Warn},
		{now, time.Time{}, false, Warn},
		{time.Unix(0, 0), time.Time{}, false, Warn},
		{time.Unix(0, 0), now, true, Warn},
	} {
		f := compareClock(tc.now, tc.written, tc.synchronised)
		if f.Status != tc.want || (f.Status == OK) != (f.Remedy == "") {
			t.Errorf("at %v, written at %v, synchronised %t: %+v, want %s", tc.now, tc.written, tc.synchronised, f, tc.want)
		}
	}
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can do this")
	}
}

// staleSocket leaves a socket behind on which nobody accepts.
func staleSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	try(t, err)
	l.SetUnlinkOnClose(false)
	try(t, l.Close())
}

// tinyDisk mounts a file system with some options.
func tinyDisk(t *testing.T, options string) string {
	t.Helper()
	asRoot(t)
	dir := t.TempDir()
	var flags uintptr
	options, readOnly := strings.CutSuffix(options, ",ro")
	if readOnly {
		flags = unix.MS_RDONLY
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); errors.Is(err, unix.EPERM) {
		t.Skip("nothing can be mounted here")
	} else {
		try(t, err)
	}
	t.Cleanup(func() { try(t, unix.Unmount(dir, 0)) })
	return dir
}

// Users without any rights. What crowded may have of inotify is used up.
const (
	nobody  = 54321
	crowded = 54322
)

// asUser runs f as another user, on a thread of its own that ends with it.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // forever: nobody else gets the thread
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- errno
			return
		}
		if uid == crowded {
			for {
				fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
				if err != nil {
					break
				}
				defer unix.Close(fd)
			}
		}
		f()
		done <- nil
	}()
	try(t, <-done)
}

func listen(t *testing.T, path string) {
	t.Helper()
	l, err := sock.Listen(path, 0o600)
	try(t, err)
	t.Cleanup(func() { try(t, l.Close()) })
}

// lock makes a file and locks it as a daemon does.
func lock(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	try(t, err)
	t.Cleanup(func() { f.Close() })
	try(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
}
