// Package sealedexec copies a program into memory that cannot be changed any more, and returns the copy with its digest. The caller checks
// the digest and executes the copy, so that a later change of the file has no effect. [Programs] returns the digests of the programs that
// running processes execute.
//
// The package does not start processes.
package sealedexec

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/patchbay-dev/patchbay/plugin"
)

// maxSize is the size in bytes of the largest program that is copied. A copy uses the memory of the host while it is cached or executed.
const maxSize = 1 << 30

// ErrUnfit is wrapped by errors about files that cannot be copied and run.
var ErrUnfit = errors.New("the program cannot be run from a checked copy")

// Digest is the SHA-256 of a program.
type Digest [32]byte

// ParseDigest reads 64 hexadecimal digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(d) {
		return d, fmt.Errorf("%q is not a SHA-256 digest: it must have 64 hexadecimal digits", s)
	}
	copy(d[:], b)
	return d, nil
}

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// InstanceID returns the digest as an instance ID of CIPD: the unpadded URL-safe base64 of its bytes and the number of the algorithm.
func (d Digest) InstanceID() string {
	const sha256 = 2
	return base64.RawURLEncoding.EncodeToString(append(d[:], sha256))
}

// stamp identifies a version of a file. Equal stamps do not prove that a file is unchanged, so a stamp never replaces the check of a
// digest.
type stamp struct {
	dev, ino          uint64
	size              int64
	mode              uint32
	modified, changed int64 // in nanoseconds since 1970
}

// Image is a sealed copy of a program. Its methods are safe for concurrent use.
type Image struct {
	// Path is the path of the file that was copied.
	Path   string
	Digest Digest
	// Script is the interpreter line of a script; nil if the program is not a script.
	Script *Script
	// File is the copy, open for reading. Release closes it.
	File *os.File

	stamp stamp
	users atomic.Int64
}

// Release releases the image, which may be nil. The memory is freed when no caller holds the image and no process executes it.
func (i *Image) Release() {
	if i != nil && i.users.Add(-1) == 0 {
		_ = i.File.Close()
	}
}

// Cache keeps the last copy of each program with an expected digest, so that a program is not copied again while its file is unchanged. A
// copy occupies one descriptor and the size of the program in memory, which it shares with the processes that execute it. When a program is
// copied, the cache drops the copies of files that were removed or changed. The zero value is empty. All methods are safe for concurrent
// use.
type Cache struct {
	mu     sync.Mutex
	images map[string]*Image // by the path of the program
	closed bool
}

// Open returns a copy of the program at path. If the digest of the copy is not want, the error wraps [plugin.ErrDigest]. If want is nil,
// the program may have any digest, and the file is always read. The caller releases the image.
func (c *Cache) Open(path string, want *Digest) (*Image, error) {
	if want != nil {
		if i := c.lookup(path, *want); i != nil {
			return i, nil
		}
	}
	i, err := newImage(path)
	if err != nil {
		return nil, fmt.Errorf("copy %s to check it: %w", path, err)
	}
	if want == nil {
		return i, nil
	}
	if i.Digest != *want {
		i.Release()
		c.prune()
		return nil, fmt.Errorf("%w: %s has %s, but %s is expected: install the program that was checked, or update sha256",
			plugin.ErrDigest, path, i.Digest, want)
	}
	c.keep(i)
	c.prune()
	return i, nil
}

// lookup returns the cached copy if it has the digest and its file has the same stamp; otherwise nil.
func (c *Cache) lookup(path string, want Digest) *Image {
	now, err := stampAt(path)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.images[path]
	if err != nil || i == nil || i.Digest != want || i.stamp != now {
		return nil
	}
	i.users.Add(1)
	return i
}

func (c *Cache) keep(i *Image) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if c.images == nil {
		c.images = map[string]*Image{}
	}
	i.users.Add(1)
	if old := c.images[i.Path]; old != nil {
		old.Release()
	}
	c.images[i.Path] = i
}

// prune drops the copies of files that were removed or changed. It does not hold the lock while it calls stat, which may hang.
func (c *Cache) prune() {
	c.mu.Lock()
	images := maps.Clone(c.images)
	c.mu.Unlock()
	for path, i := range images {
		if now, err := stampAt(path); err == nil && now == i.stamp {
			continue
		}
		c.mu.Lock()
		if c.images[path] == i {
			i.Release()
			delete(c.images, path)
		}
		c.mu.Unlock()
	}
}

// Close releases all copies. Programs that are opened afterwards are not cached.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.images {
		i.Release()
	}
	c.images, c.closed = nil, true
}

// maxFirstLine is the longest interpreter line in bytes, as in the kernel (BINPRM_BUF_SIZE).
const maxFirstLine = 256

// Script is the interpreter line of a script, as in "#!/bin/sh -e".
type Script struct {
	// Interpreter is the absolute path of the interpreter.
	Interpreter string
	// argument is the rest of the line. As in the kernel it is one argument, even with spaces in it, and none if it is empty.
	argument string
}

// ParseScript parses the first line of a program. It returns nil if the program is not a script.
func ParseScript(program []byte) (*Script, error) {
	line, isScript := bytes.CutPrefix(program[:min(len(program), maxFirstLine)], []byte("#!"))
	if !isScript {
		return nil, nil //nolint:nilnil // documented
	}
	line, _, ended := bytes.Cut(line, []byte("\n"))
	if !ended && len(program) >= maxFirstLine {
		return nil, fmt.Errorf("%w: the first line of the script has more than %d bytes", ErrUnfit, maxFirstLine)
	}
	line = bytes.Trim(line, " \t")
	interpreter, argument := line, []byte(nil)
	if i := bytes.IndexAny(line, " \t"); i >= 0 {
		interpreter, argument = line[:i], bytes.TrimLeft(line[i:], " \t")
	}
	if !bytes.HasPrefix(interpreter, []byte("/")) || bytes.IndexByte(line, 0) >= 0 {
		return nil, fmt.Errorf("%w: the first line of the script names no interpreter by an absolute path: %q", ErrUnfit, line)
	}
	return &Script{Interpreter: string(interpreter), argument: string(argument)}, nil
}

// CommandLine returns the arguments of the interpreter: its path, the argument of the line, the path of the script, and args.
func (s *Script) CommandLine(script string, args []string) []string {
	line := []string{s.Interpreter}
	if s.argument != "" {
		line = append(line, s.argument)
	}
	return append(append(line, script), args...)
}

// Find returns the path of the program with a name, as package [os/exec] finds it: a name without a slash is looked up in PATH, and any
// other relative name is relative to dir, or to the working directory of this process if dir is empty.
func Find(name, dir string) (string, error) {
	if dir != "" && filepath.Base(name) != name && !filepath.IsAbs(name) {
		var err error
		if name, err = filepath.Abs(filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return exec.LookPath(name)
}

var (
	// ErrEnded is wrapped by errors about a process that has ended, even if another process has its PID now.
	ErrEnded = errors.New("the process has ended")
	// errUnreadable is wrapped by errors about a program that this process may not read.
	errUnreadable = errors.New("the program of the process cannot be read")
)

// Programs returns the digests of the programs that processes execute, and caches those of unchanged files. It reads the file that the
// kernel executes, not the file that is now at the same path. For a script that is the interpreter. A process can execute another program
// at any time, so a result may be outdated when it is returned. The zero value is empty. All methods are safe for concurrent use.
type Programs struct {
	mu    sync.Mutex
	known map[stamp]*program
}

// maxKnown bounds the cached digests.
const maxKnown = 256

// program is a file whose digest is known or being computed.
type program struct {
	lock   chan struct{} // holds an element while a caller uses the fields below
	known  bool
	digest Digest
}

// lookup returns the cache entry of a file, which may be new.
func (p *Programs) lookup(f stamp) *program {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[f]; known != nil {
		return known
	}
	if p.known == nil {
		p.known = map[stamp]*program{}
	}
	for old := range p.known { // any of them
		if len(p.known) < maxKnown {
			break
		}
		delete(p.known, old)
	}
	made := &program{lock: make(chan struct{}, 1)}
	p.known[f] = made
	return made
}
