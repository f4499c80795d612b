//go:build linux

package exe

import (
	"fmt"
	"maps"
	"sync"

	"golang.org/x/sys/unix"
)

// Cache keeps the last copy of each program that has to have a known digest, so that it is not copied again while its file is unchanged. It
// costs one descriptor and the size of the program, which the processes that run it share. A copy whose file is gone or has changed is
// given up when the next one is kept. The zero value is empty. All methods are safe for concurrent use.
type Cache struct {
	mu     sync.Mutex
	images map[string]*Image // by the path of the program
	closed bool
}

// Open returns a copy of the program at path, which has the digest want; an error that wraps [ErrDigest] if the program has another one. A
// nil want means that any will do; then the file is always read. The caller releases the image.
func (c *Cache) Open(path string, want *Digest) (*Image, error) {
	if want == nil {
		return Load(path)
	}
	if i := c.lookup(path, *want); i != nil {
		return i, nil
	}
	i, err := Load(path)
	if err != nil {
		return nil, err
	}
	if i.digest != *want {
		i.Release()
		c.forget(path)
		return nil, fmt.Errorf("%w: %s has %s, but %s is expected: put the program there that was checked, "+
			"or expect the other digest if that is the one to run", ErrDigest, path, i.digest, want)
	}
	c.keep(i)
	c.prune()
	return i, nil
}

// lookup returns the kept copy if it has the digest and the file looks unchanged.
func (c *Cache) lookup(path string, want Digest) *Image {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.images[path]
	if i == nil || i.digest != want || i.hint != hintOf(&st) || !i.retain() {
		return nil
	}
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
	i.retain()
	if old := c.images[i.path]; old != nil {
		old.Release()
	}
	c.images[i.path] = i
}

// prune drops the copies of files that were removed or changed. No lock is held over a file system, which may hang.
func (c *Cache) prune() {
	c.mu.Lock()
	images := maps.Clone(c.images)
	c.mu.Unlock()
	for path, i := range images {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && hintOf(&st) == i.hint {
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

func (c *Cache) forget(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.images[path]; old != nil {
		old.Release()
		delete(c.images, path)
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
