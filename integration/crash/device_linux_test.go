package crash_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// operation is what a device can be asked for.
type operation string

const (
	opRead  operation = "read"
	opWrite operation = "write"
	opSync  operation = "sync"
	opOpen  operation = "open" // for writing, which includes making a file
)

const pageSize = 4096

// device is a directory of which the test says what fails. It has a cache in front of its disk, like every device of a kernel: a write is
// in the cache, a sync brings it to the disk, and what a sync that fails should have brought there never comes, though it still is
// in the cache.
type device struct {
	mount  string // where the directory is
	cache  string // the directory behind it
	server *fuse.Server

	mu    sync.Mutex
	fault func(op operation, offset int64) syscall.Errno // nil: none
	dirty map[string]map[int64]bool                      // pages by file that the disk does not have
	disk  map[string][]byte
	kept  [][]byte // the state file as the disk had it after each sync
}

// mountDevice mounts a device until the end of the test.
func mountDevice(t *testing.T) *device {
	t.Helper()
	d := &device{mount: t.TempDir(), cache: t.TempDir(), dirty: map[string]map[int64]bool{}, disk: map[string][]byte{}}
	loopback, err := fs.NewLoopbackRoot(d.cache)
	if err != nil {
		t.Fatal(err)
	}
	node, ok := loopback.(*fs.LoopbackNode)
	if !ok {
		t.Fatalf("the root is a %T", loopback)
	}
	root := &deviceNode{LoopbackNode: node, device: d}
	node.RootData.RootNode = root
	d.server, err = fs.Mount(d.mount, root, &fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "patchbay-test"}})
	if err != nil {
		t.Skipf("no FUSE file system to be had: %v", err)
	}
	t.Cleanup(func() {
		d.fail(nil)
		d.unmount(t)
	})
	return d
}

// unmount unmounts the device, at once or at the end of the test.
func (d *device) unmount(t *testing.T) {
	t.Helper()
	if d.server == nil {
		return
	}
	// Children that other tests fork have what this process has open, until they execute their programs.
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := d.server.Unmount()
		if err == nil {
			break
		}
		if time.Since(began) > patience {
			t.Errorf("cannot unmount: %v", err)
			return
		}
	}
	d.server.Wait()
	d.server = nil
}

// fail says what fails from now on.
func (d *device) fail(fault func(op operation, offset int64) syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

func (d *device) errno(op operation, offset int64) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault == nil {
		return 0
	}
	return d.fault(op, offset)
}

func (d *device) written(file string, offset int64, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dirty[file] == nil {
		d.dirty[file] = map[int64]bool{}
	}
	for page := offset / pageSize; page*pageSize < offset+int64(n); page++ {
		d.dirty[file][page] = true
	}
}

// sync brings a file to the disk. If it fails, nothing ever brings there what was written before.
func (d *device) sync(file string) syscall.Errno {
	errno := d.errno(opSync, 0)
	d.mu.Lock()
	defer d.mu.Unlock()
	dirty := slices.Sorted(maps.Keys(d.dirty[file]))
	delete(d.dirty, file)
	if errno == 0 {
		content, err := os.ReadFile(filepath.Join(d.cache, file))
		if err != nil {
			return fs.ToErrno(err)
		}
		disk := make([]byte, len(content))
		copy(disk, d.disk[file])
		for _, page := range dirty {
			if begin := page * pageSize; begin < int64(len(content)) {
				copy(disk[begin:], content[begin:min(begin+pageSize, int64(len(content)))])
			}
		}
		d.disk[file] = disk
	}
	if file == stateFile {
		d.kept = append(d.kept, slices.Clone(d.disk[file]))
	}
	return errno
}

// linked takes over that a file has a second name: the daemon makes a new state file under another one.
func (d *device) linked(from, to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.disk[to] = slices.Clone(d.disk[from])
}

// deviceNode is a file or directory of a device.
type deviceNode struct {
	*fs.LoopbackNode

	device *device
}

// WrapChild implements [fs.NodeWrapChilder].
func (n *deviceNode) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if node, ok := ops.(*fs.LoopbackNode); ok {
		return &deviceNode{LoopbackNode: node, device: n.device}
	}
	return ops
}

func (n *deviceNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		if errno := n.device.errno(opOpen, 0); errno != 0 {
			return nil, 0, errno
		}
	}
	handle, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	return n.wrap(handle, n.Path(nil)), fuseFlags, errno
}

func (n *deviceNode) Create(
	ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.device.errno(opOpen, 0); errno != 0 {
		return nil, nil, 0, errno
	}
	inode, handle, fuseFlags, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, n.wrap(handle, filepath.Join(n.Path(nil), name)), fuseFlags, errno
}

func (n *deviceNode) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	from := target.EmbeddedInode().Path(nil)
	if node, ok := target.(*deviceNode); ok {
		target = node.LoopbackNode
	}
	inode, errno := n.LoopbackNode.Link(ctx, target, name, out)
	if errno == 0 {
		n.device.linked(from, filepath.Join(n.Path(nil), name))
	}
	return inode, errno
}

// Setattr changes the size also through its handle, which is one of ours.
func (n *deviceNode) Setattr(ctx context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if errno := n.device.errno(opWrite, 0); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Setattr(ctx, nil, in, out)
}

func (n *deviceNode) Getattr(ctx context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	return n.LoopbackNode.Getattr(ctx, nil, out)
}

func (n *deviceNode) wrap(handle fs.FileHandle, file string) fs.FileHandle {
	if open, ok := handle.(*fs.LoopbackFile); ok {
		return &deviceFile{file: open, device: n.device, name: strings.TrimPrefix(file, "/")}
	}
	return handle
}

// deviceFile is an open file of a device.
type deviceFile struct {
	file   *fs.LoopbackFile
	device *device
	name   string
}

var (
	_ fs.FileReader   = (*deviceFile)(nil)
	_ fs.FileWriter   = (*deviceFile)(nil)
	_ fs.FileFsyncer  = (*deviceFile)(nil)
	_ fs.FileReleaser = (*deviceFile)(nil)
)

func (f *deviceFile) Read(ctx context.Context, buf []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	for at := offset; at < offset+int64(len(buf)); at += pageSize {
		if errno := f.device.errno(opRead, at); errno != 0 {
			return nil, errno
		}
	}
	return f.file.Read(ctx, buf, offset)
}

func (f *deviceFile) Write(ctx context.Context, data []byte, offset int64) (uint32, syscall.Errno) {
	if errno := f.device.errno(opWrite, offset); errno != 0 {
		return 0, errno
	}
	n, errno := f.file.Write(ctx, data, offset)
	f.device.written(f.name, offset, int(n))
	return n, errno
}

func (f *deviceFile) Fsync(context.Context, uint32) syscall.Errno { return f.device.sync(f.name) }

func (f *deviceFile) Release(ctx context.Context) syscall.Errno { return f.file.Release(ctx) }
