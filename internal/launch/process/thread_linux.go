package process

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// thread runs functions on one thread of the operating system. A parent-death signal fires when the thread ends that forked, so all
// processes of a [Group] are forked by one thread that lives as long as they do.
type thread struct {
	work  chan func()
	ended chan struct{}
}

func newThread() *thread {
	t := &thread{work: make(chan func()), ended: make(chan struct{})}
	go t.run()
	return t
}

func (t *thread) run() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread never ends, and what is changed about it looks like the whole process's. While it is held here, another
		// goroutine gets another one.
		elsewhere := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(elsewhere)
			t.serve()
		}()
		<-elsewhere
		runtime.UnlockOSThread()
		return
	}
	t.serve()
}

// serve runs what there is to run, on a goroutine that is locked to its thread and never unlocked: the thread ends with it, with all
// that was changed about it.
func (t *thread) serve() {
	defer close(t.ended)
	dropAmbient()
	for f := range t.work {
		f()
	}
}

// do runs f and returns when it has run.
func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.work <- func() { defer close(done); f() }
	<-done
}

// close waits for the end of what is running. Nothing may be running afterwards.
func (t *thread) close() {
	close(t.work)
	<-t.ended
}
