package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	// capDACOverride is the number of the capability that opens the sockets of other users, from linux/capability.h.
	capDACOverride = 1
	// lowSpace is the free space in bytes below which checkState warns. The state file is far smaller.
	lowSpace = 16 << 20
	// probeTimeout bounds one connect.
	probeTimeout = time.Second
	// askTimeout bounds one request to a daemon or a file system.
	askTimeout = 3 * time.Second
	// shown is the maximum number of paths in a finding.
	shown = 5
)

func checkUser(context.Context, Subject) []Finding {
	uid := os.Geteuid()
	if hasCapability(capDACOverride) {
		return []Finding{ok(fmt.Sprintf("user %d can connect to the sockets of all users", uid))}
	}
	return []Finding{warn(fmt.Sprintf("user %d can connect only to its own sockets: plugins of other users cannot be reached", uid),
		"run as root, give the daemon the capability CAP_DAC_OVERRIDE, or run the plugins as the same user")}
}

func hasCapability(number int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.Geteuid() == 0
	}
	return data[number/32].Effective&(1<<(number%32)) != 0
}

func checkPluginDirs(ctx context.Context, s Subject) []Finding {
	findings := make([]Finding, len(s.PluginDirs))
	for i, dir := range s.PluginDirs {
		if !answers(ctx, dir) {
			findings[i] = fail(fmt.Sprintf("plugin directory %s is on a file system that does not answer", dir), hungRemedy)
			continue
		}
		findings[i] = checkPluginDir(dir, s.Trust)
		if space, known := checkSpace(dir, "no plugin can create a socket in it"); known && space.Status == Fail && findings[i].Status == OK {
			findings[i] = space
		}
	}
	return findings
}

func checkPluginDir(dir string, judge *trustjudge.Judge) Finding {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return checkMissing(dir, "plugin directory "+dir)
	case err != nil:
		return fail(fmt.Sprintf("plugin directory %s cannot be inspected: %v", dir, err),
			"make its parent directories accessible to the daemon's user")
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fail(dir+" is configured as a plugin directory and is not a directory", "remove it, or configure another directory")
	}
	if err := unix.Access(dir, unix.R_OK|unix.X_OK); err != nil {
		return fail(fmt.Sprintf("plugin directory %s (mode %04o, owner %d) cannot be read by user %d", dir, st.Mode&0o7777, st.Uid, os.Geteuid()),
			fmt.Sprintf("chown it to the daemon's user, or chmod it to 0750 with the daemon's group: chmod 0750 %s", dir))
	}
	mode := fs.FileMode(st.Mode & 0o777)
	if st.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	if refusal, refused := errors.AsType[*trust.Refusal](judge.Directory(dir, mode, st.Uid, st.Gid)); refused {
		return fail("plugin "+refusal.Problem, refusal.Remedy)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil && !errors.Is(err, unix.EROFS) { // checkSpace reports EROFS
		return warn(fmt.Sprintf("plugin directory %s (mode %04o, owner %d) cannot be written by user %d: launched plugins cannot create "+
			"their sockets", dir, st.Mode&0o7777, st.Uid, os.Geteuid()),
			fmt.Sprintf("chown %d %s, or run the daemon as user %d", os.Geteuid(), dir, st.Uid))
	}
	return ok(fmt.Sprintf("plugin directory %s exists (mode %04o, owner %d)", dir, st.Mode&0o7777, st.Uid))
}

// checkMissing checks that this user could create a file that does not exist yet.
func checkMissing(path, what string) Finding {
	parent := filepath.Dir(path)
	for {
		err := unix.Access(parent, unix.W_OK|unix.X_OK)
		if err == nil {
			return ok(what + " does not exist yet and can be created")
		}
		if !errors.Is(err, fs.ErrNotExist) || parent == filepath.Dir(parent) {
			return fail(fmt.Sprintf("%s does not exist and cannot be created: user %d may not write to %s", what, os.Geteuid(), parent),
				"create it, with the daemon's user as its owner, or choose another path")
		}
		parent = filepath.Dir(parent)
	}
}

// checkSockets looks for stale or inaccessible sockets, and for files that are not trusted.
func checkSockets(ctx context.Context, s Subject) []Finding {
	seen := survey{subject: s, refused: map[trust.Reason][]string{}}
	for _, dir := range s.PluginDirs {
		seen.walk(ctx, dir)
	}
	return seen.findings()
}

// survey collects what is found in plugin directories.
type survey struct {
	subject                Subject
	sockets                int
	stale, denied, foreign []string
	refused                map[trust.Reason][]string
}

const hungRemedy = "restore its server, or unmount it: umount --lazy PATH"

// answers reports whether path is not a mount point, or the file system mounted there answers within askTimeout. If a system call hangs,
// its goroutine is leaked.
func answers(ctx context.Context, path string) bool {
	if e, err := sock.StatEntry(path, true); err != nil || !e.IsMountPoint {
		return true
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if dir, err := os.Open(path); err == nil {
			_, _ = dir.Stat()
			_, _ = dir.Readdirnames(1)
			_ = dir.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	select {
	case <-answered:
		return true
	case <-ctx.Done():
		return false
	}
}

func (v *survey) walk(ctx context.Context, dir string) {
	if !answers(ctx, dir) {
		return // checkPluginDirs reports it
	}
	// checkPluginDirs reports directories that cannot be read.
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || ctx.Err() != nil:
			return fs.SkipDir
		case entry.IsDir() && path != dir && entry.Name()[0] == '.':
			return fs.SkipDir
		case path == dir || entry.Name()[0] == '.':
			return nil
		case entry.IsDir() && dirwatch.IsForeign(path):
			v.foreign = append(v.foreign, path)
			return fs.SkipDir
		}
		if refusal := refusalOf(v.subject.Trust, path); refusal != nil {
			v.refused[refusal.Reason] = append(v.refused[refusal.Reason], path)
			if entry.IsDir() {
				return fs.SkipDir
			}
		}
		if entry.Type()&fs.ModeSocket != 0 {
			v.probe(ctx, path)
		}
		return nil
	})
}

func (v *survey) probe(ctx context.Context, path string) {
	v.sockets++
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := sock.Probe(ctx, path)
	switch {
	case sock.IsRefused(err):
		v.stale = append(v.stale, path)
	case errors.Is(err, fs.ErrPermission):
		v.denied = append(v.denied, path)
	}
}

func (v *survey) findings() []Finding {
	var findings []Finding
	report := func(f func(message, remedy string) Finding, paths []string, problem, remedy string) {
		if len(paths) > 0 {
			message := fmt.Sprintf("%d of %d sockets %s: %q", len(paths), v.sockets, problem, paths[:min(len(paths), shown)])
			findings = append(findings, f(message, remedy))
		}
	}
	if len(v.foreign) > 0 {
		findings = append(findings, warn(fmt.Sprintf("%d file systems below the plugin directories are not searched, because they may not "+
			"answer: %q", len(v.foreign), v.foreign[:min(len(v.foreign), shown)]),
			"use local directories, or configure a directory on such a file system as a plugin directory"))
	}
	report(warn, v.stale, "are stale: no process accepts on them",
		"remove the sockets of plugins that will not be started again; a plugin that starts again creates a new socket")
	report(fail, v.denied, fmt.Sprintf("cannot be opened by user %d: their plugins will not be registered", os.Geteuid()),
		"run the daemon as their owner or as root, give it the capability CAP_DAC_OVERRIDE, or chown the sockets")
	for _, reason := range slices.Sorted(maps.Keys(v.refused)) {
		paths := v.refused[reason]
		first := refusalOf(v.subject.Trust, paths[0])
		if first == nil {
			continue // fixed in the meantime
		}
		problem := first.Problem
		if len(paths) > 1 {
			problem += fmt.Sprintf(", and %d more like this: %q", len(paths)-1, paths[1:min(len(paths), shown)])
		}
		findings = append(findings, warn("not used: "+problem, first.Remedy))
	}
	return orOK(findings, fmt.Sprintf("%d sockets in the plugin directories, none of them stale", v.sockets))
}

// refusalOf returns the reason why a directory, socket or link in a plugin directory is not used; nil if it is used.
func refusalOf(judge *trustjudge.Judge, path string) *trust.Refusal {
	info, err := sock.Stat(path) // a removed file is not refused
	switch {
	case err != nil:
	case info.Mode&fs.ModeSymlink != 0:
		err = judge.Link(path)
	case info.Mode.IsDir():
		err = judge.Directory(path, info.Mode, info.UID, info.GID)
	case info.IsSocket():
		err = judge.Socket(path, info.UID, info.GID)
	}
	refusal, _ := errors.AsType[*trust.Refusal](err)
	return refusal
}

func checkState(_ context.Context, s Subject) []Finding {
	if s.StatePath == "" {
		return []Finding{fail("no state file is configured", "name one with --state")}
	}
	findings := []Finding{checkStateFile(s.StatePath)}
	if space, known := checkSpace(filepath.Dir(s.StatePath), "no registration can be saved"); known {
		findings = append(findings, space)
	}
	return findings
}

func checkStateFile(path string) Finding {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return checkMissing(path, "state file "+path)
	case err != nil:
		return fail(fmt.Sprintf("state file %s cannot be inspected: %v", path, err), "make its directory accessible to the daemon's user")
	case !info.Mode().IsRegular():
		return fail(fmt.Sprintf("state file %s is not a regular file (%s)", path, info.Mode()), "choose another path with --state")
	}
	if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
		return fail(fmt.Sprintf("state file %s (mode %04o) cannot be read and written by user %d: %v",
			path, info.Mode().Perm(), os.Geteuid(), err),
			"chown it to the daemon's user and chmod it to 0600")
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fail(fmt.Sprintf("state file %s may be written by others (mode %04o)", path, info.Mode().Perm()), "chmod 0600 "+path)
	}
	return ok(fmt.Sprintf("state file %s exists (%d bytes)", path, info.Size()))
}

// checkSpace checks the file system of dir, or of its nearest parent that exists. The loss is the consequence of a full file system.
func checkSpace(dir, loss string) (f Finding, known bool) {
	var st unix.Statfs_t
	for unix.Statfs(dir, &st) != nil {
		if dir == filepath.Dir(dir) {
			return Finding{}, false
		}
		dir = filepath.Dir(dir)
	}
	free := st.Bavail * uint64(st.Bsize)
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return fail("the file system of "+dir+" is read-only: "+loss, "mount it writable, or choose another path"), true
	case free == 0:
		return fail("the file system of "+dir+" is full: "+loss, "make room on it, or choose another path"), true
	case st.Files > 0 && st.Ffree == 0:
		return fail("the file system of "+dir+" has no free inodes: "+loss, "remove files from it, or choose another path"), true
	case free < lowSpace:
		return warn(fmt.Sprintf("the file system of %s has %d KiB left", dir, free>>10), "make room before it is full: then "+loss), true
	}
	return ok(fmt.Sprintf("the file system of %s has %d MiB left", dir, free>>20)), true
}

// errSilent means that a process accepts on the control socket and does not answer.
var errSilent = errors.New("no answer")

// daemonOf returns the process of the daemon that serves the control socket. If that daemon does not answer, the error is errSilent and the
// process is the one that listens.
func daemonOf(ctx context.Context, s Subject) (pid int, err error) {
	probing, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	peer, err := sock.Probe(probing, s.ControlSocket)
	if err != nil || s.Daemon == nil {
		return peer.PID, err
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if pid, err = s.Daemon(asking); err != nil {
		return peer.PID, fmt.Errorf("%w: %w", errSilent, err)
	}
	return pid, nil
}

func checkControlSocket(ctx context.Context, s Subject) []Finding {
	path := s.ControlSocket
	if path == "" {
		return []Finding{fail("no control socket is configured", "name one with --control-socket")}
	}
	if len(path) > sock.MaxPath {
		return []Finding{fail(fmt.Sprintf("control socket %s has a path of %d bytes, a socket's path may have %d",
			path, len(path), sock.MaxPath),
			"choose a shorter one with --control-socket")}
	}
	info, err := sock.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{checkMissing(path, "control socket "+path)}
	case err != nil:
		return []Finding{fail(fmt.Sprintf("control socket %s cannot be inspected: %v", path, err), "make its directory accessible")}
	case !info.IsSocket():
		return []Finding{fail(fmt.Sprintf("control socket %s is not a socket (%s): no daemon can serve there", path, info.Mode),
			"remove it, or choose another path with --control-socket")}
	}
	pid, err := daemonOf(ctx, s)
	switch {
	case err == nil:
		return []Finding{ok(fmt.Sprintf("a daemon (pid %d) serves the control socket %s: no second one can be started with it", pid, path))}
	case errors.Is(err, errSilent):
		return []Finding{fail(fmt.Sprintf("process %d accepts on control socket %s and does not answer as a daemon: %v", pid, path, err),
			"look at the log of that process; end it if it hangs, or choose another path with --control-socket")}
	case sock.IsRefused(err):
		return []Finding{fail(fmt.Sprintf("control socket %s is stale: its daemon has exited without removing it", path),
			"read the end of the daemon's log, then start the daemon: it replaces the socket")}
	}
	return []Finding{fail(fmt.Sprintf("control socket %s cannot be reached: %v", path, err),
		"run this as root, as the daemon's user, or as a member of the socket's group")}
}

// checkOtherDaemons looks for processes other than the daemon that lock the state file or watch a plugin directory.
func checkOtherDaemons(ctx context.Context, s Subject) []Finding {
	daemon, _ := daemonOf(ctx, s) // checkControlSocket reports the error
	var findings []Finding
	if pid, locked := lockedBy(s.StatePath); locked && (pid != daemon || daemon == 0) {
		findings = append(findings, fail(
			fmt.Sprintf("state file %s is in use by %s, which does not serve control socket %s: no daemon can be started with it",
				s.StatePath, processName(pid), s.ControlSocket),
			"end that daemon, or give each daemon its own --state and --control-socket"))
	}
	for _, dir := range s.PluginDirs {
		watchers, _ := process.Watchers(ctx, dir) // checkPluginDirs reports the error
		for _, pid := range watchers {
			if pid != daemon {
				findings = append(findings, warn(
					fmt.Sprintf("plugin directory %s is watched by %s too: if that is a daemon or a kubelet, both register what is there",
						dir, processName(pid)),
					"give each its own --plugin-dir, or end one of them"))
			}
		}
	}
	return orOK(findings, "no other process uses the state file or watches the plugin directories")
}

// lockedBy reports whether the file at path is locked, and by which process; zero if the process is not visible from this PID namespace. It
// does not try to take the lock, because a daemon that starts at the same time would fail.
func lockedBy(path string) (pid int, locked bool) {
	var st unix.Statx_t
	flags := unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC // a remote file system may not answer
	if unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_INO, &st) != nil {
		return 0, false
	}
	inode := fmt.Sprintf("%02x:%02x:%d", st.Dev_major, st.Dev_minor, st.Ino)
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF; "->" before the kind marks a waiting process.
		fields := strings.Fields(line)
		if len(fields) >= 6 && fields[1] != "->" && fields[5] == inode {
			pid, _ = strconv.Atoi(fields[4])
			return max(pid, 0), true
		}
	}
	return 0, false
}
