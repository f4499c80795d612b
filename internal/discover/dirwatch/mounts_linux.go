package dirwatch

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// mounts reports changes of the mount table, for which there are no file events.
type mounts struct {
	changed chan struct{} // receives a value after a change; is closed when the report of changes ends
	// The runtime's poller wakes up for table, but does not return which events it got. The kernel keeps for each open file the last change
	// that was reported (proc_pid_mountinfo(5)), so polling checker shows whether there was a change.
	table, checker *os.File
	closing        chan struct{}
	reading        sync.WaitGroup
}

// mountGap is the minimum time between two reported changes, to limit the number of scans.
const mountGap = 500 * time.Millisecond

func openMounts() (*mounts, error) {
	// gofail: var dirwatchMounts string
	// return nil, errors.New(dirwatchMounts)
	const path = "/proc/self/mountinfo"
	table, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "open", Path: path, Err: err}, table.Close())
	}
	checker := os.NewFile(uintptr(fd), path) // in blocking mode, so that the runtime's poller does not use it
	m := &mounts{changed: make(chan struct{}, 1), table: table, checker: checker, closing: make(chan struct{})}
	conn, err := table.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, table.Close(), checker.Close())
	}
	m.reading.Go(func() {
		defer close(m.changed)
		_ = conn.Read(m.onWake) // blocks until close, or returns immediately if the file cannot be polled
	})
	return m, nil
}

// onWake is called at the start and after each wake-up of table, including one while onWake ran. It returns true after close.
func (m *mounts) onWake(uintptr) (done bool) {
	asked := []unix.PollFd{{Fd: int32(m.checker.Fd()), Events: unix.POLLPRI}}
	if n, err := unix.Poll(asked, 0); err == nil && n == 0 {
		return false
	}
	select {
	case m.changed <- struct{}{}:
	default: // a change is already pending
	}
	pause := time.NewTimer(mountGap)
	defer pause.Stop()
	select {
	case <-pause.C:
		return false
	case <-m.closing:
		return true
	}
}

// fileSystemAt returns the type of the file system that is mounted at path, empty if unknown. It does not block on the file system.
func fileSystemAt(path string) string {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_MNT_ID, &st); err != nil {
		return ""
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	number := strconv.FormatUint(st.Mnt_id, 10)
	for line := range strings.Lines(string(table)) {
		if id, rest, _ := strings.Cut(line, " "); id == number {
			_, rest, _ = strings.Cut(rest, " - ")
			kind, _, _ := strings.Cut(rest, " ")
			return kind
		}
	}
	return ""
}

func (m *mounts) close() {
	close(m.closing)
	_ = m.table.Close()
	m.reading.Wait()
	_ = m.checker.Close()
}

// hasAllEvents reports whether inotify reports every change of a directory, because only this kernel can change its file system. There are
// no events for changes that are made by the server of a network file system or of a file system in user space.
func hasAllEvents(dir *os.File) bool {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return false
	}
	switch uint32(fs.Type) { // signed on some architectures
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC:
		return true
	}
	return false
}

// openDir opens a directory for reading. If something else is at path by now, it fails without blocking: a symbolic link, unless follow is
// set, a named pipe, or another mount than the given one, whose file system may not answer.
func openDir(path string, follow bool, mount uint64) (*os.File, error) {
	// gofail: var dirwatchOpen int
	// return nil, &os.PathError{Op: "open", Path: path, Err: unix.Errno(dirwatchOpen)}
	flags := unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	place, err := openAt(unix.AT_FDCWD, path, flags)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(place) }()
	if e, err := sock.StatFile(place); err != nil || e.Mount != mount {
		return nil, &os.PathError{Op: "open", Path: path, Err: errRemounted}
	}
	fd, err := openAt(place, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openAt(dir int, path string, flags int) (int, error) {
	for {
		if fd, err := unix.Openat(dir, path, flags, 0); err != unix.EINTR {
			return fd, err
		}
	}
}
