package sealedexec

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

func stampOf(st *unix.Stat_t) stamp {
	dev := uint64(st.Dev) //nolint:unconvert // its type depends on the architecture
	return stamp{dev: dev, ino: st.Ino, size: st.Size, mode: st.Mode, modified: st.Mtim.Nano(), changed: st.Ctim.Nano()}
}

func stampAt(path string) (stamp, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return stampOf(&st), err
}

func newImage(path string) (*Image, error) {
	// Without O_NONBLOCK, opening a named pipe would block until there is a writer.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	source := os.NewFile(uintptr(fd), path)
	defer source.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if err := fit(&st); err != nil {
		return nil, err
	}
	copied, err := copyOf(source, filepath.Base(path))
	if err != nil {
		return nil, err
	}
	i := &Image{Path: path, File: copied, stamp: stampOf(&st)}
	i.users.Store(1)
	if err := i.examine(); err != nil {
		i.Release()
		return nil, err
	}
	return i, nil
}

// fit returns an error for a file that is not an executable program, or whose copy would run with other privileges.
func fit(st *unix.Stat_t) error {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%w: it is not a regular file", ErrUnfit)
	case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		return fmt.Errorf("%w: it is setuid or setgid, which a copy cannot be; set user and group instead", ErrUnfit)
	case st.Mode&0o111 == 0:
		return fmt.Errorf("%w: it is not executable: %w", ErrUnfit, fs.ErrPermission)
	case st.Size > maxSize:
		return fmt.Errorf("%w: it has %d bytes, and at most %d are copied", ErrUnfit, st.Size, maxSize)
	}
	return nil
}

// copyOf returns a sealed copy, which is open for reading only.
func copyOf(source *os.File, name string) (*os.File, error) {
	const longest = 200 // the kernel's bound is 249
	fd, err := memfd(name[:min(len(name), longest)])
	if err != nil {
		return nil, err
	}
	target := os.NewFile(uintptr(fd), name)
	defer target.Close()
	// The struct hides ReadFrom of the target, which would first try splice, and then copy in small steps.
	n, err := io.CopyBuffer(struct{ io.Writer }{target}, io.LimitReader(source, maxSize+1), make([]byte, step))
	// gofail: var exeCopy string
	// err = errors.New(exeCopy)
	if err != nil {
		return nil, fmt.Errorf("copy into memory: %w", err)
	}
	if n > maxSize {
		return nil, fmt.Errorf("%w: it grew over %d bytes while it was copied", ErrUnfit, maxSize)
	}
	if err := target.Chmod(0o555); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3 has no seal for the mode
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	// gofail: var exeSeal string
	// err = errors.New(exeSeal)
	if err != nil {
		return nil, fmt.Errorf("seal the copy: %w", err)
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) // its offset is 0
}

func memfd(name string) (int, error) {
	// gofail: var exeMemory string
	// return -1, fmt.Errorf("make a file in memory (memfd_create): %s", exeMemory)
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3 has no flag, and can execute every file in memory
		fd, err = unix.MemfdCreate(name, flags)
	}
	switch {
	case errors.Is(err, unix.EACCES):
		return -1, fmt.Errorf("the system does not let files in memory be executed: set the sysctl vm.memfd_noexec to 0 or 1: %w", err)
	case err != nil:
		return -1, fmt.Errorf("make a file in memory (memfd_create): %w", err)
	}
	return fd, nil
}

// examine sets the fields that are read from the sealed copy.
func (i *Image) examine() error {
	hash := sha256.New()
	// The struct hides WriteTo of the file, which copies in small steps.
	size, err := io.CopyBuffer(hash, struct{ io.Reader }{i.File}, make([]byte, step))
	if err != nil {
		return fmt.Errorf("read the copy: %w", err)
	}
	if size == 0 {
		return fmt.Errorf("%w: it is empty", ErrUnfit)
	}
	hash.Sum(i.Digest[:0])
	begin := make([]byte, min(size, maxFirstLine))
	if _, err := i.File.ReadAt(begin, 0); err != nil {
		return fmt.Errorf("read the copy: %w", err)
	}
	i.Script, err = ParseScript(begin)
	return err
}

// step is the size in bytes of the buffer for copying and hashing.
const step = 256 << 10

// maxLinks is the largest number of symbolic links in a path, as in the kernel (path_resolution(7)).
const maxLinks = 40

// TrustInterpreter returns an error if users other than root and the user of this process can change or replace an interpreter, or if it is
// setuid or not a program. Interpreters are not copied: like shared libraries, they belong to the system.
func TrustInterpreter(path string) error {
	if err := trust(path); err != nil {
		return fmt.Errorf("the interpreter %s: %w", path, err)
	}
	return nil
}

// trust checks each directory and symbolic link of an absolute path, in the order in which the kernel follows them: a user who can change
// one of them can replace the file.
func trust(path string) error {
	const root = "/"
	at, rest, links := root, strings.Split(path, root), 0
	var st unix.Stat_t
	if err := trusted(at, &st); err != nil {
		return err
	}
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(at, name) // correct for .., because at has no symbolic links
		if err := trusted(next, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return unix.ELOOP
		}
		target, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = append(strings.Split(target, root), rest...)
	}
	return fit(&st)
}

// trusted returns an error if other users can change a file or directory. In a sticky directory they can create files, but not change or
// remove those of root and this user.
func trusted(path string, st *unix.Stat_t) error {
	if err := unix.Lstat(path, st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	kind := st.Mode & unix.S_IFMT
	sticky := kind == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() || kind != unix.S_IFLNK && st.Mode&0o022 != 0 && !sticky {
		return fmt.Errorf("%w: not only root can change %s (it belongs to user %d and has mode %04o)", ErrUnfit, path, st.Uid, st.Mode&0o7777)
	}
	return nil
}

// minAge is the age at which the digest of a file may be cached. A younger file could change again within one tick of the file system's
// clock, with the same times.
const minAge = 2 * time.Second

// Digest returns the digest of the program that a process executes. The process is identified by its PID and its start time, as in
// [plugin.Peer]. Unless the digest is cached, Digest blocks until the file is read or ctx is done. The error wraps [ErrEnded],
// [errUnreadable] or the error of ctx.
func (p *Programs) Digest(ctx context.Context, pid int, start uint64) (Digest, error) {
	if pid <= 0 || start == 0 {
		return Digest{}, fmt.Errorf("%w: the process cannot be seen from here, it lives in another PID namespace", errUnreadable)
	}
	opened, err := os.Open("/proc/" + strconv.Itoa(pid) + "/exe")
	// If the process still has the PID now, it had the PID when the file was opened.
	if !sock.Is(pid, start) {
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
	if !keepsTimes(f) || time.Since(time.Unix(0, before.changed)) < minAge {
		return digestOfFile(ctx, f, before)
	}
	known := p.lookup(before)
	select {
	case known.lock <- struct{}{}:
		defer func() { <-known.lock }()
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

// digestOfFile reads a file to its end. It fails if the file changes while it is read.
func digestOfFile(ctx context.Context, f *os.File, before stamp) (Digest, error) {
	if before.size > maxSize {
		return Digest{}, fmt.Errorf("it has %d bytes, and at most %d are read", before.size, maxSize)
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
		return stamp{}, errors.New("it is not a regular file")
	}
	return stampOf(&st), nil
}

// keepsTimes reports whether the file system of a file updates its times with each change of its content. File servers may not, and file
// systems in memory do not for a change through a mapping.
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
