// Package sealedexec makes what was checked what runs: it copies a program into memory that nobody can change any more, and says which
// digest the copy has. The copy is what is executed then, whatever happens to the file. Of processes that somebody else has started it says
// which program they run, by its digest ([Programs]).
//
// It starts nothing and trusts nobody: whether a digest is the right one is up to the caller.
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

// maxSize is the size in bytes of the largest program that is copied. A copy is memory of the host, for as long as it is kept or runs.
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

// stamp is by what a file is taken to be unchanged. It can be fooled, so it never stands for a check: it only says whether what is known of
// the content that is expected is likely to be true of the file as well.
type stamp struct {
	dev, ino          uint64
	size              int64
	mode              uint32
	modified, changed int64 // in nanoseconds since 1970
}

// Image is a sealed copy of a program. Its methods are safe for concurrent use.
type Image struct {
	// Path is that of the file that was copied.
	Path   string
	Digest Digest
	// Script is what the first line of a script asks for; nil if the program is none.
	Script *Script
	// File is the copy, open for reading. It is the image's: who needs it after Release duplicates it.
	File *os.File

	stamp stamp
	users atomic.Int64
}

// Release gives the image back, if it is not nil. The memory is freed when nobody holds or runs it any more.
func (i *Image) Release() {
	if i != nil && i.users.Add(-1) == 0 {
		_ = i.File.Close()
	}
}

// load copies a program. The caller releases the image. The file may be changed meanwhile: what the copy then has is what its digest is of.
func load(path string) (*Image, error) {
	i, err := newImage(path)
	if err != nil {
		return nil, fmt.Errorf("copy %s to check it: %w", path, err)
	}
	return i, nil
}

// Cache keeps the last copy of each program that has to have a known digest, so that it is not copied again while its file is unchanged. It
// costs one descriptor and the size of the program, which the processes that run it share. A copy whose file is gone or has changed is
// given up when the next program is copied. The zero value is empty. All methods are safe for concurrent use.
type Cache struct {
	mu     sync.Mutex
	images map[string]*Image // by the path of the program
	closed bool
}

// Open returns a copy of the program at path, which has the digest want; an error that wraps [plugin.ErrDigest] if the program has another
// one. A nil want means that any will do; then the file is always read. The caller releases the image.
func (c *Cache) Open(path string, want *Digest) (*Image, error) {
	if want == nil {
		return load(path)
	}
	if i := c.lookup(path, *want); i != nil {
		return i, nil
	}
	i, err := load(path)
	if err != nil {
		return nil, err
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

// lookup returns the kept copy if it has the digest and the file looks unchanged.
func (c *Cache) lookup(path string, want Digest) *Image {
	now, err := stampAt(path)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.images[path]
	if err != nil || i == nil || i.Digest != want || i.stamp != now {
		return nil
	}
	i.users.Add(1) // the cache is one of them
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

// prune drops the copies of files that were removed or changed. No lock is held over a file system, which may hang.
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

// Close releases all copies. What is opened afterwards is not kept.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.images {
		i.Release()
	}
	c.images, c.closed = nil, true
}

// maxFirstLine is how much of the first line of a script counts, as in the kernel (BINPRM_BUF_SIZE).
const maxFirstLine = 256

// Script is what the first line of a script asks for.
type Script struct {
	// Interpreter is the absolute path of the program that runs it.
	Interpreter string
	// argument is what follows on the line; empty for nothing. As in the kernel it is one argument, whatever is in it.
	argument string
}

// ParseScript reads the first line of a program; nil if it is no script.
func ParseScript(program []byte) (*Script, error) {
	line, isScript := bytes.CutPrefix(program[:min(len(program), maxFirstLine)], []byte("#!"))
	if !isScript {
		return nil, nil //nolint:nilnil // no script is not an error
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

// CommandLine returns the interpreter's arguments: its own name, what the line has, the script, and the script's own.
func (s *Script) CommandLine(script string, args []string) []string {
	line := []string{s.Interpreter}
	if s.argument != "" {
		line = append(line, s.argument)
	}
	return append(append(line, script), args...)
}

// Find returns the path of the program that a command executes whose first word is name and whose working directory is dir, by the rule of
// package [os/exec]: a name without a slash is looked up in PATH, and any other relative name is relative to dir, or to the directory of
// this process if dir is empty.
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
	// ErrEnded says that the process has ended, or that its number is another one's.
	ErrEnded = errors.New("the process has ended")
	// errUnreadable says that the system does not let this process read the program.
	errUnreadable = errors.New("the program of the process cannot be read")
)

// Programs says which programs processes run, by their digests, and remembers those of files that have not changed. It looks at what the
// kernel executes, and not at the path from which that came: the file there may have become another one since. A process that runs a
// script runs the interpreter, and the digest is that of the interpreter. A process can execute another program at any time, so the answer
// is of the moment of the question. The zero value is empty. All methods are safe for concurrent use.
type Programs struct {
	mu    sync.Mutex
	known map[stamp]*program
}

// maxKnown bounds the programs that are remembered.
const maxKnown = 256

// program is a file whose digest is known or being found out.
type program struct {
	turn   chan struct{} // has a place for the one who finds it out
	known  bool
	digest Digest
}

func (p *Programs) of(f stamp) *program {
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
	made := &program{turn: make(chan struct{}, 1)}
	p.known[f] = made
	return made
}
