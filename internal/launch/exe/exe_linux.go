package exe

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func stampOf(st *unix.Stat_t) stamp {
	dev := uint64(st.Dev) //nolint:unconvert // its type depends on the architecture
	return stamp{dev: dev, ino: st.Ino, size: st.Size, mode: st.Mode, modified: st.Mtim.Nano(), changed: st.Ctim.Nano()}
}

// stampAt looks at the file at a path.
func stampAt(path string) (stamp, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return stampOf(&st), err
}

func load(path string) (*Image, error) {
	// Not blocking: a named pipe would wait for a writer.
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

// fit refuses what must not be run, or would run as something else than it is.
func fit(st *unix.Stat_t) error {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%w: it is no regular file", ErrUnfit)
	case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		return fmt.Errorf("%w: it is setuid or setgid, which a copy cannot be; set user and group in its place", ErrUnfit)
	case st.Mode&0o111 == 0:
		return fmt.Errorf("%w: it is not executable: %w", ErrUnfit, fs.ErrPermission)
	case st.Size > MaxSize:
		return fmt.Errorf("%w: it has %d bytes, and at most %d are copied", ErrUnfit, st.Size, MaxSize)
	}
	return nil
}

// copyOf returns a sealed copy, open for reading only.
func copyOf(source *os.File, name string) (*os.File, error) {
	const longest = 200 // the kernel's bound is 249
	fd, err := memfd(name[:min(len(name), longest)])
	if err != nil {
		return nil, err
	}
	target := os.NewFile(uintptr(fd), name)
	defer target.Close()
	// The target does not show its ReadFrom, which tries what does not work between these two, and then takes small steps.
	n, err := io.CopyBuffer(struct{ io.Writer }{target}, io.LimitReader(source, MaxSize+1), make([]byte, step))
	// gofail: var exeCopy string
	// err = errors.New(exeCopy)
	if err != nil {
		return nil, fmt.Errorf("copy into memory: %w", err)
	}
	if n > MaxSize {
		return nil, fmt.Errorf("%w: it grew over %d bytes while it was copied", ErrUnfit, MaxSize)
	}
	if err := target.Chmod(0o555); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, which has no seal for the mode
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	// gofail: var exeSeal string
	// err = errors.New(exeSeal)
	if err != nil {
		return nil, fmt.Errorf("seal the copy: %w", err)
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) // with an offset of its own
}

// memfd makes a file in memory that can be executed and sealed.
func memfd(name string) (int, error) {
	// gofail: var exeMemory string
	// return -1, fmt.Errorf("make a file in memory (memfd_create): %s", exeMemory)
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, where all can be executed
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

// examine reads the copy, which cannot change any more: nothing that is found out can become untrue.
func (i *Image) examine() error {
	hash := sha256.New()
	// Not io.Copy alone, which takes small steps.
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
	i.Script, err = parseScript(begin)
	return err
}

// step is how many bytes are copied or hashed at a time.
const step = 256 << 10
