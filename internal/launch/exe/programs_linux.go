package exe

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// settled is for how long a file must not have changed to be remembered: within one tick of the file system's clock it can change again
// without a difference in its times.
const settled = 2 * time.Second

// Digest returns the digest of the program that a process runs. The start time is that of [sock.Peer]: together with the PID it names the
// process. Reading takes as long as the program is large, unless it is remembered; ctx ends it. The error wraps [ErrEnded],
// [errUnreadable] or that of ctx.
func (p *Programs) Digest(ctx context.Context, pid int, startTime uint64) (Digest, error) {
	if pid <= 0 || startTime == 0 {
		return Digest{}, fmt.Errorf("%w: the process cannot be seen from here, it lives in another PID namespace", errUnreadable)
	}
	opened, err := os.Open("/proc/" + strconv.Itoa(pid) + "/exe")
	// It was this process when the file was opened if it is this process still.
	if sock.StartTime(pid) != startTime {
		if err == nil {
			_ = opened.Close()
		}
		return Digest{}, fmt.Errorf("%w: process %d", ErrEnded, pid)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return Digest{}, fmt.Errorf("%w: process %d: %w; let the daemon run as root, as the user of the plugin, or with CAP_SYS_PTRACE",
			errUnreadable, pid, err)
	case err != nil:
		return Digest{}, fmt.Errorf("%w: process %d: %w", errUnreadable, pid, err)
	}
	defer opened.Close()
	digest, err := p.digest(ctx, opened)
	if err != nil {
		return Digest{}, fmt.Errorf("%w: process %d: %w", errUnreadable, pid, err)
	}
	return digest, nil
}

func (p *Programs) digest(ctx context.Context, f *os.File) (Digest, error) {
	before, err := identify(f)
	if err != nil {
		return Digest{}, err
	}
	if !keepsTimes(f) || time.Since(time.Unix(0, before.changed)) < settled {
		return digestOfFile(ctx, f, before)
	}
	known := p.of(before)
	select {
	case known.turn <- struct{}{}:
		defer func() { <-known.turn }()
	case <-ctx.Done():
		return Digest{}, ctx.Err()
	}
	if known.known {
		return known.digest, nil
	}
	digest, err := digestOfFile(ctx, f, before)
	if err == nil {
		known.digest, known.known = digest, true
	}
	return digest, err
}

// digestOfFile reads a file to its end. It fails if the file changes meanwhile.
func digestOfFile(ctx context.Context, f *os.File, before stamp) (Digest, error) {
	if before.size > MaxSize {
		return Digest{}, fmt.Errorf("it has %d bytes, and at most %d are read", before.size, MaxSize)
	}
	hash, buffer := sha256.New(), make([]byte, step)
	for {
		n, err := f.Read(buffer)
		_, _ = hash.Write(buffer[:n]) // never fails
		if errors.Is(err, io.EOF) {
			break
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return Digest{}, err
		}
	}
	after, err := identify(f)
	if err != nil {
		return Digest{}, err
	}
	if after != before {
		return Digest{}, errors.New("it changes while it is read")
	}
	return Digest(hash.Sum(nil)), nil
}

func identify(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return stamp{}, errors.New("it is no regular file")
	}
	return stampOf(&st), nil
}

// keepsTimes says whether the kernel itself, and no server, keeps the times of a file, and changes them with each change of its content:
// on file systems in memory a change through a mapping leaves no trace.
func keepsTimes(f *os.File) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil {
		return false
	}
	switch uint32(st.Type) { // The magic numbers have 32 bits, the field may have 64
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return true
	default:
		return false
	}
}
