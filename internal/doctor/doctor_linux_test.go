package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/cgroupfs"
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
	return Subject{
		PluginDirs:    []string{plugins},
		StatePath:     filepath.Join(dir, "state.db"),
		ControlSocket: filepath.Join(dir, "c.sock"),
	}
}

func TestFaultsAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		provoke func(t *testing.T, s *Subject)
		check   string
		status  Status
		says    string
	}{
		"nothing": {
			provoke: func(*testing.T, *Subject) {},
			check:   "plugin-dirs", status: OK, says: "is there",
		},
		"directory writable by everyone": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.Chmod(s.PluginDirs[0], 0o777)) },
			check:   "plugin-dirs", status: Fail, says: "written by everyone",
		},
		"directory of somebody else": {
			provoke: func(t *testing.T, s *Subject) {
				asRoot(t)
				try(t, os.Chown(s.PluginDirs[0], 12345, 12345))
			},
			check: "plugin-dirs", status: Fail, says: "belongs to user 12345",
		},
		"directory that is a file": {
			provoke: func(t *testing.T, s *Subject) {
				s.PluginDirs[0] = filepath.Join(s.PluginDirs[0], "file")
				try(t, os.WriteFile(s.PluginDirs[0], nil, 0o600))
			},
			check: "plugin-dirs", status: Fail, says: "is none",
		},
		"directory that is not there yet": {
			provoke: func(_ *testing.T, s *Subject) { s.PluginDirs[0] = filepath.Join(s.PluginDirs[0], "a", "b") },
			check:   "plugin-dirs", status: OK, says: "can be made",
		},
		"stale socket": {
			provoke: func(t *testing.T, s *Subject) { staleSocket(t, filepath.Join(s.PluginDirs[0], "old.sock")) },
			check:   "sockets", status: Warn, says: `1 of 1 sockets are stale, nobody accepts on them: ["`,
		},
		"state that others may write": {
			provoke: func(t *testing.T, s *Subject) {
				try(t, os.WriteFile(s.StatePath, nil, 0o600))
				try(t, os.Chmod(s.StatePath, 0o666))
			},
			check: "state", status: Fail, says: "written by others",
		},
		"state that is a directory": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.Mkdir(s.StatePath, 0o700)) },
			check:   "state", status: Fail, says: "not a regular file",
		},
		"full disk": {
			provoke: func(t *testing.T, s *Subject) {
				disk := tinyDisk(t)
				s.StatePath = filepath.Join(disk, "state.db")
				_ = os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 1<<20), 0o600) // until it is full
			},
			check: "state", status: Fail, says: "is full",
		},
		"stale control socket": {
			provoke: func(t *testing.T, s *Subject) { staleSocket(t, s.ControlSocket) },
			check:   "control-socket", status: Warn, says: "is stale",
		},
		"another daemon": {
			provoke: func(t *testing.T, s *Subject) {
				l, err := sock.Listen(s.ControlSocket, 0o600)
				try(t, err)
				t.Cleanup(func() { try(t, l.Close()) })
			},
			check: "control-socket", status: OK, says: fmt.Sprintf("a daemon (pid %d) serves", os.Getpid()),
		},
		"control socket that is a file": {
			provoke: func(t *testing.T, s *Subject) { try(t, os.WriteFile(s.ControlSocket, nil, 0o600)) },
			check:   "control-socket", status: Fail, says: "is not a socket",
		},
		"control socket with a long path": {
			provoke: func(_ *testing.T, s *Subject) { s.ControlSocket = "/" + strings.Repeat("x", 200) },
			check:   "control-socket", status: Fail, says: "201 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy(t)
			tc.provoke(t, &s)
			findings := Examine(t.Context(), s)
			for _, f := range findings {
				if f.Check == tc.check && f.Status == tc.status && strings.Contains(f.Message, tc.says) {
					if f.Status != OK && f.Remedy == "" {
						t.Errorf("%+v has no remedy", f)
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
	if f := lookAtOpenFiles(old); f.Status != OK {
		t.Errorf("with the limit of this machine: %+v", f)
	}
	if f := lookAtOpenFiles(unix.Rlimit{Cur: 256, Max: 1024}); f.Status != Warn || !strings.Contains(f.Message, "1024") {
		t.Errorf("with a limit of 1,024: %+v", f)
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
			if f := lookAtCgroup(system, writable); f.Status != tc.groups || !strings.Contains(f.Message, tc.says) {
				t.Errorf("finding is %+v, want %s and %q", f, tc.groups, tc.says)
			}
			f := lookAtLimits(system, func(string) []string { return tc.controllers }, writable)
			if f.Status != tc.limits || !strings.Contains(f.Message, tc.limitsSay) {
				t.Errorf("finding is %+v, want %s and %q", f, tc.limits, tc.limitsSay)
			}
		})
	}
}

func TestClock(t *testing.T) {
	now := time.Date(builtYear, 6, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		now          time.Time
		synchronised bool
		want         Status
	}{
		{now, true, OK},
		{now, false, Warn},
		{time.Unix(0, 0), true, Fail},
	} {
		if f := lookAtClock(tc.now, tc.synchronised); f.Status != tc.want {
			t.Errorf("at %v, synchronised %t: %+v, want %s", tc.now, tc.synchronised, f, tc.want)
		}
	}
}

func TestWorst(t *testing.T) {
	if w := Worst([]Finding{ok(""), fail("", ""), warn("", "")}); w != Fail {
		t.Errorf("worst is %s, want %s", w, Fail)
	}
	if w := Worst([]Finding{ok(""), warn("", ""), ok("")}); w != Warn {
		t.Errorf("worst is %s, want %s", w, Warn)
	}
	if w := Worst(nil); w != OK {
		t.Errorf("worst of none is %s, want %s", w, OK)
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

// tinyDisk mounts a file system of 64 KiB.
func tinyDisk(t *testing.T) string {
	t.Helper()
	asRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); errors.Is(err, unix.EPERM) {
		t.Skip("nothing can be mounted here")
	} else {
		try(t, err)
	}
	t.Cleanup(func() { try(t, unix.Unmount(dir, 0)) })
	return dir
}
