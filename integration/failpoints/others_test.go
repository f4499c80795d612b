//go:build linux

package failpoints

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig/etcd"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
)

// lasts is how long the other fault of a pair lasts.
const lasts = 500 * time.Millisecond

// fellow is a plugin to which the other fault happens, if it happens to one. It may become another instance.
const fellow = "fellow"

// other is a fault that comes together with a point.
type other struct {
	name, is string
	// prepare makes the scene one to which it can happen, before the daemon starts first; nil for nothing.
	prepare func(*scene)
	// begin has it happen, while the daemon may run or not, and returns what ends it.
	begin func(*scene) (end func() error, err error)
	// all says that plugins which the point does not concern have events too.
	all bool
}

// others are the faults that come together with each point, in the order of the documentation.
func others() []other {
	return []other{
		{
			name: "full disk", is: "no space is left where the daemon's files and sockets are",
			prepare: mountDisk, begin: fillDisk,
		},
		{
			name: "no descriptors", is: "the daemon can open nothing",
			begin: limitDescriptors,
		},
		{
			name: "no memory", is: "no process can be started, and a launched plugin is killed",
			prepare: launchFellow, begin: refuseProcesses,
		},
		{
			name: "etcd away", is: "etcd is killed and comes back",
			prepare: startEtcd, begin: killEtcd,
		},
		{
			name: "plugin hung", is: "another plugin appears and never answers",
			begin: hang,
		},
		{
			name: "admission away", is: "the admission plugin is killed and cannot be started",
			prepare: admitByScript, begin: killAdmission, all: true,
		},
		{
			name: "socket moved", is: "the socket of another plugin is renamed, and renamed back",
			prepare: serveFellow, begin: moveSocket,
		},
		{
			name: "clock jump", is: "the timestamps of directories and sockets jump an hour forward, then to an hour back",
			begin: setTimes,
		},
		{
			name: "SIGSTOP", is: "the daemon is stopped",
			begin: standStill,
		},
		{
			name: "reload", is: "the configuration is reloaded again and again, and differs each time",
			begin: turn,
		},
	}
}

// mountDisk puts everything of the scene on a file system of its own.
func mountDisk(s *scene) {
	if os.Geteuid() != 0 {
		s.Skip("a file system is mounted by root only")
	}
	if err := syscall.Mount("tmpfs", s.setup.Dir, "tmpfs", 0, "size=1m"); err != nil {
		s.Skip("no file system can be mounted here: ", err)
	}
	s.Cleanup(func() {
		if err := syscall.Unmount(s.setup.Dir, syscall.MNT_DETACH); err != nil {
			s.Error(err)
		}
	})
}

func fillDisk(s *scene) (end func() error, err error) {
	f, err := os.Create(s.path("filler"))
	if err != nil {
		return nil, err
	}
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return nil, errors.Join(err, f.Close())
	}
	return func() error { return os.Remove(f.Name()) }, f.Close()
}

// limitDescriptors leaves the daemon the three that each process has, and all that are open.
func limitDescriptors(s *scene) (end func() error, err error) {
	pid := s.child.cmd.Process.Pid
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		return nil, err
	}
	return func() error { return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil) },
		unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}, nil)
}

// launchFellow has the daemon launch the fellow.
func launchFellow(s *scene) {
	s.launchable(func(p *catalogue.Plugin) {
		p.Name = fellow
		p.Env[nameEnv], p.Env[sceneEnv] = fellow, s.setup.Dir
	})
}

// refuseProcesses has each start of a process fail. That which the play has fail comes after it.
func refuseProcesses(s *scene) (end func() error, err error) {
	const point = "processFork"
	if err := s.ask("Enable", Arm{point, `return("fork/exec: cannot allocate memory")`}); err != nil {
		return nil, err
	}
	return func() error {
		for _, a := range s.armed {
			if a.Point == point {
				return s.ask("Enable", a)
			}
		}
		return s.ask("Disable", point)
	}, s.kill(guest)
}

// startEtcd has the node belong to a fleet.
func startEtcd(s *scene) {
	var err error
	if s.etcd, err = etcd.New(s.TempDir()); err == nil {
		err = s.etcd.Start()
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(s.etcd.Kill)
	s.setup.Etcd = s.etcd.Client
}

func killEtcd(s *scene) (end func() error, err error) {
	s.etcd.Kill()
	return s.etcd.Start, nil
}

// hang has a plugin appear that listens and does nothing else.
func hang(s *scene) (end func() error, err error) {
	if err := os.MkdirAll(s.path("plugins"), 0o750); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", filepath.Join(s.path("plugins"), "hung.sock"))
	if err != nil {
		return nil, err
	}
	return listener.Close, nil
}

// admitByScript has an admission plugin asked that cannot be started while there is a file.
func admitByScript(s *scene) {
	s.setup.Admitter = []string{
		"/bin/sh", "-c", `test ! -e "$0" || exit 1; exec "$@"`, s.path("away"),
		"/usr/bin/env", roleEnv + "=" + admitter, sceneEnv + "=" + s.setup.Dir, os.Args[0],
	}
}

func killAdmission(s *scene) (end func() error, err error) {
	if err := os.WriteFile(s.path("away"), nil, 0o600); err != nil {
		return nil, err
	}
	return func() error { return os.Remove(s.path("away")) }, s.kill(admitter)
}

// serveFellow has the fellow be there before the daemon is.
func serveFellow(s *scene) {
	if err := os.MkdirAll(s.path("plugins"), 0o750); err != nil {
		s.Fatal(err)
	}
	s.serve(fellow)
}

func moveSocket(s *scene) (end func() error, err error) {
	from, to := filepath.Join(s.path("plugins"), fellow+".sock"), filepath.Join(s.path("plugins"), "moved.sock")
	return func() error { return os.Rename(to, from) }, os.Rename(from, to)
}

// setTimes has the times of files be of the future, and then of the past. Only their relation to the clock matters to the daemon, and a test
// must not set the clock of the machine.
func setTimes(s *scene) (end func() error, err error) {
	set := func(by time.Duration) error {
		at := time.Now().Add(by)
		return filepath.WalkDir(s.setup.Dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Type() == fs.ModeSymlink {
				return ignoreGone(err)
			}
			return ignoreGone(os.Chtimes(path, at, at))
		})
	}
	return func() error { return set(-time.Hour) }, set(time.Hour)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func standStill(s *scene) (end func() error, err error) {
	process := s.child.cmd.Process
	return func() error { return process.Signal(syscall.SIGCONT) }, process.Signal(syscall.SIGSTOP)
}

// turn reloads until it is ended.
func turn(s *scene) (end func() error, err error) {
	if err := s.ask("Turn", true); err != nil {
		return nil, err
	}
	c := client.New(s.path("control.sock"))
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_, _ = c.Reload(ctx) // the daemon may not run, and the point may have it fail
			<-time.After(10 * time.Millisecond)
		}
	}()
	return func() error {
		cancel()
		<-ended
		c.Close()
		return s.ask("Turn", false)
	}, nil
}

// kill kills the processes of a role that were started for the scene.
func (s *scene) kill(role string) error {
	entries, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return err
	}
	for _, path := range entries {
		text, err := os.ReadFile(path)
		environ := strings.Split(string(text), "\x00")
		if err != nil || !slices.Contains(environ, roleEnv+"="+role) || !slices.Contains(environ, sceneEnv+"="+s.setup.Dir) {
			continue // it has ended, or is another's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}
