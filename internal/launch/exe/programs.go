package exe

import (
	"errors"
	"sync"
)

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

// of returns what is remembered of a file.
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
