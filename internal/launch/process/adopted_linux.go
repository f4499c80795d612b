package process

import (
	"context"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// children are the processes that this process has started and not waited for, by their IDs. Like the processes they belong to the program.
var children = struct { //nolint:gochecknoglobals // see above
	starting sync.RWMutex // held while a process is started and not yet in started
	mu       sync.Mutex   // guards started
	started  map[int]struct{}
}{started: map[int]struct{}{}}

// startChild calls start and remembers the process that it starts.
func startChild(start func() (*os.Process, error)) (*os.Process, error) {
	children.starting.RLock()
	defer children.starting.RUnlock()
	proc, err := start()
	if err == nil {
		children.mu.Lock()
		children.started[proc.Pid] = struct{}{}
		children.mu.Unlock()
	}
	return proc, err
}

// forgetChild is called when a process has been waited for.
func forgetChild(pid int) {
	children.mu.Lock()
	defer children.mu.Unlock()
	delete(children.started, pid)
}

// ReapAdopted waits for processes that this process did not start, until ctx ends: if it is the first one of a container, it becomes the
// parent of all that lose theirs. In every other process it does nothing.
// The program must start processes only with a [Group].
func ReapAdopted(ctx context.Context) {
	if os.Getpid() != 1 {
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		reapAdopted()
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

func reapAdopted() {
	children.starting.Lock()
	defer children.starting.Unlock()
	children.mu.Lock()
	defer children.mu.Unlock()
	for pid, s := range allStats() {
		if _, own := children.started[pid]; !own && s.parent == os.Getpid() && !s.alive() {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // what has gone is what is wanted
		}
	}
}
