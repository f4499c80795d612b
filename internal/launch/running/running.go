package running

import (
	"errors"
	"sync"

	"github.com/patchbay-dev/patchbay/internal/launch/exe"
)

var (
	// ErrEnded says that the process has ended, or that its number is another one's.
	ErrEnded = errors.New("the process has ended")
	// ErrUnreadable says that the system does not let this process read the program.
	ErrUnreadable = errors.New("the program of the process cannot be read")
)

// Programs finds out the digests of programs, and remembers those of files that have not changed. The zero value is empty. All methods are
// safe for concurrent use.
type Programs struct {
	mu    sync.Mutex
	known map[file]*program
}

// maxKnown bounds the programs that are remembered.
const maxKnown = 256

// file identifies the content of a file, as long as nobody changes it unnoticed.
type file struct {
	device, inode          uint64
	size                   int64
	modified, modifiedNano int64
	changed, changeNano    int64
}

// program is a file whose digest is known or being found out.
type program struct {
	turn   chan struct{} // has a place for the one who finds it out
	known  bool
	digest exe.Digest
}

// of returns what is remembered of a file.
func (p *Programs) of(f file) *program {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[f]; known != nil {
		return known
	}
	if p.known == nil {
		p.known = map[file]*program{}
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
