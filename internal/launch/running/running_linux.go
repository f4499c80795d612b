package running

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/exe"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// settled is for how long a file must not have changed to be remembered: within one tick of the file system's clock it can change again
// without a difference in its times.
const settled = 2 * time.Second

// Digest returns the digest of the program that a process runs. The start time is that of [sock.Peer]: together with the PID it names the
// process. Reading takes as long as the program is large, unless it is remembered; ctx ends it. The error wraps [ErrEnded],
// [ErrUnreadable] or that of ctx.
func (p *Programs) Digest(ctx context.Context, pid int, startTime uint64) (exe.Digest, error) {
	if pid <= 0 || startTime == 0 {
		return exe.Digest{}, fmt.Errorf("%w: the process cannot be seen from here, it lives in another PID namespace", ErrUnreadable)
	}
	opened, err := os.Open("/proc/" + strconv.Itoa(pid) + "/exe")
	// It was this process when the file was opened if it is this process still.
	if sock.StartTime(pid) != startTime {
		if err == nil {
			_ = opened.Close()
		}
		return exe.Digest{}, fmt.Errorf("%w: process %d", ErrEnded, pid)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return exe.Digest{}, fmt.Errorf("%w: process %d: %w; let the daemon run as root, as the user of the plugin, or with CAP_SYS_PTRACE",
			ErrUnreadable, pid, err)
	case err != nil:
		return exe.Digest{}, fmt.Errorf("%w: process %d: %w", ErrUnreadable, pid, err)
	}
	defer opened.Close()
	digest, err := p.digest(ctx, opened)
	if err != nil {
		return exe.Digest{}, fmt.Errorf("%w: process %d: %w", ErrUnreadable, pid, err)
	}
	return digest, nil
}

func (p *Programs) digest(ctx context.Context, f *os.File) (exe.Digest, error) {
	before, err := identify(f)
	if err != nil {
		return exe.Digest{}, err
	}
	if !keepsTimes(f) || time.Since(time.Unix(before.changed, before.changeNano)) < settled {
		return read(ctx, f, before)
	}
	known := p.of(before)
	select {
	case known.turn <- struct{}{}:
		defer func() { <-known.turn }()
	case <-ctx.Done():
		return exe.Digest{}, ctx.Err()
	}
	if known.known {
		return known.digest, nil
	}
	digest, err := read(ctx, f, before)
	if err == nil {
		known.digest, known.known = digest, true
	}
	return digest, err
}

// read reads a file to its end. It fails if the file changes meanwhile.
func read(ctx context.Context, f *os.File, before file) (exe.Digest, error) {
	if before.size > exe.MaxSize {
		return exe.Digest{}, fmt.Errorf("it has %d bytes, and at most %d are read", before.size, exe.MaxSize)
	}
	hash, buffer := sha256.New(), make([]byte, 256<<10)
	for {
		n, err := f.Read(buffer)
		_, _ = hash.Write(buffer[:n]) // never fails
		if errors.Is(err, io.EOF) {
			break
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return exe.Digest{}, err
		}
	}
	after, err := identify(f)
	if err != nil {
		return exe.Digest{}, err
	}
	if after != before {
		return exe.Digest{}, errors.New("it changes while it is read")
	}
	return exe.Digest(hash.Sum(nil)), nil
}

func identify(f *os.File) (file, error) {
	info, err := f.Stat()
	if err != nil {
		return file{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return file{}, errors.New("it is no regular file")
	}
	return file{
		device: uint64(st.Dev), inode: st.Ino, size: info.Size(), //nolint:unconvert // the type depends on the architecture
		modified: int64(st.Mtim.Sec), modifiedNano: int64(st.Mtim.Nsec), //nolint:unconvert // so do these
		changed: int64(st.Ctim.Sec), changeNano: int64(st.Ctim.Nsec), //nolint:unconvert // and these
	}, nil
}

// keepsTimes says whether the kernel itself, and no server, keeps the times of a file, and changes them with each change of its content:
// on file systems in memory a change through a mapping leaves no trace.
func keepsTimes(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var st unix.Statfs_t
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = unix.Fstatfs(int(fd), &st) }); err != nil || serr != nil {
		return false
	}
	switch uint32(st.Type) { // The magic numbers have 32 bits, the field may have 64
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return true
	default:
		return false
	}
}
