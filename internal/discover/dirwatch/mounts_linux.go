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

// mounts tells of changes to the file systems that this process sees, of which no file event tells.
type mounts struct {
	changed chan struct{} // has a value after a change; closed when no more can be told
	// table wakes up, and news knows whether that was for a change: the kernel notes for each open file which one was asked for last
	// (proc_pid_mountinfo(5)), and the poller of the runtime, which asks for table, does not say what it was answered.
	table, news *os.File
	closing     chan struct{}
	reading     sync.WaitGroup
}

// mountGap is the least time between two changes that are told, so that a storm of mounts does not become one of scans.
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
	news := os.NewFile(uintptr(fd), path) // the poller does not ask for it, since it blocks
	m := &mounts{changed: make(chan struct{}, 1), table: table, news: news, closing: make(chan struct{})}
	conn, err := table.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, table.Close(), news.Close())
	}
	m.reading.Go(func() {
		defer close(m.changed)
		_ = conn.Read(m.woke) // until close, or at once if the system cannot wake anybody
	})
	return m, nil
}

// woke is called at the beginning and whenever table has woken up, also if that was while it ran. It returns true when there is no use in
// waiting.
func (m *mounts) woke(uintptr) (done bool) {
	asked := []unix.PollFd{{Fd: int32(m.news.Fd()), Events: unix.POLLPRI}}
	if n, err := unix.Poll(asked, 0); err == nil && n == 0 {
		return false
	}
	select {
	case m.changed <- struct{}{}:
	default: // nobody has looked since the last one
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

// fileSystemAt returns the type of the file system that is mounted at a path, without asking it; empty if it is not known.
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
	_ = m.table.Close() // nothing was written
	m.reading.Wait()
	_ = m.news.Close()
}

// tells reports whether the file system of a directory is one that nobody but this kernel changes, so that inotify tells of every change.
// Network file systems and those in user space are changed by others without a word.
func tells(dir *os.File) bool {
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

// openDir opens a directory of a mount for reading, and nothing else that may have taken its place: not what a symbolic link points to,
// unless follow is set, no named pipe, and nothing that was mounted there since, which may not answer.
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
	defer func() { _ = unix.Close(place) }() // nothing was written
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
