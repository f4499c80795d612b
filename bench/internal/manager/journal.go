package manager

import (
	"sync"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// PluginType is the type that the plugins announce.
const PluginType = "BenchPlugin"

// The lines of a raw plugin: it is asked RawWho and answers with its name, and is told RawTold and answers RawDone.
const (
	RawWho  = "who"
	RawTold = "registered"
	RawDone = "done"
)

// Journal notes what a contestant does. Its methods are safe for concurrent use.
type Journal struct {
	began   int64      // when the contestant was started, in nanoseconds of proc.Now
	before  proc.Usage // what its process had used by then
	ready   chan struct{}
	isReady sync.Once

	mu      sync.Mutex
	changed *sync.Cond
	plugins map[string]*plugin // by name
}

// plugin is what happened to the plugins of one name.
type plugin struct {
	registered, deregistered int64 // when the last of these calls was made, in nanoseconds of proc.Now; zero if none
	registrations            int
	settlements              int
	settled                  map[string]bool // by instance
}

func newJournal() (*Journal, error) {
	before, err := proc.ReadUsage()
	if err != nil {
		return nil, err
	}
	began, err := proc.Now()
	j := &Journal{began: began, before: before, ready: make(chan struct{}), plugins: map[string]*plugin{}}
	j.changed = sync.NewCond(&j.mu)
	return j, err
}

// Ready notes that plugins which appear from now on are found.
func (j *Journal) Ready() { j.isReady.Do(func() { close(j.ready) }) }

// Registered is called at the moment at which the contestant hands a plugin to its consumer.
func (j *Journal) Registered(name string) error {
	at, err := proc.Now()
	j.note(name, func(p *plugin) {
		p.registered = at
		p.registrations++
	})
	return err
}

// Settled notes that the contestant has nothing to do any more with an instance of a plugin that it registered. A contestant that does not
// tell instances apart names none.
func (j *Journal) Settled(name, instance string) {
	j.note(name, func(p *plugin) {
		p.settled[instance] = true
		p.settlements++
	})
}

// Deregistered is called at the moment at which the contestant tells the consumer that a plugin went.
func (j *Journal) Deregistered(name string) error {
	at, err := proc.Now()
	j.note(name, func(p *plugin) { p.deregistered = at })
	return err
}

// Gone notes that the contestant has nothing to do any more with an instance that went.
func (j *Journal) Gone(name, instance string) {
	j.note(name, func(p *plugin) { delete(p.settled, instance) })
}

func (j *Journal) note(name string, change func(*plugin)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.plugins[name]
	if p == nil {
		p = &plugin{settled: map[string]bool{}}
		j.plugins[name] = p
	}
	change(p)
	j.changed.Broadcast()
}
