package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/plugin"
)

// maxFile is the size in bytes from which the file of events is renamed and a new one is created. Two files are kept.
const maxFile = 4 << 20

// keeper writes events to a file in the goroutine of run, so that no publisher waits for the disk.
type keeper struct {
	path string
	max  int64 // the size in bytes from which the file is renamed
	log  *slog.Logger
	wake chan struct{} // signals that there are events to write; holds one signal
	// unreadable signals that past events could not be read. It holds one signal.
	unreadable chan struct{}

	mu               sync.Mutex
	pending          []plugin.Event // at most as many as the Journal has in memory
	left             int            // the number of dropped events
	writing, reading trouble

	// Only the goroutine of run uses these.
	began bool        // an event has been written
	dir   fs.FileInfo // the directory where the file is or may be created; nil if it did not exist
}

// trouble is a problem with the file that may end.
type trouble struct {
	what, remedy, ended string // for messages
	err                 error  // nil if there is no problem
	since               time.Time
}

func newKeeper(path string, log *slog.Logger) *keeper {
	dir, _ := os.Stat(filepath.Dir(path))
	return &keeper{
		path: path, max: maxFile, log: log, wake: make(chan struct{}, 1), unreadable: make(chan struct{}, 1), dir: dir,
		writing: trouble{
			what: "events cannot be written, and would be missing after a restart", ended: "events are written again",
			remedy: "check that there is space and that the file can be written",
		},
		reading: trouble{
			what: "earlier events cannot be read, and are not shown", ended: "earlier events can be read again",
			remedy: "check that the file can be read",
		},
	}
}

// add queues an event to be written. It does not block.
func (k *keeper) add(e plugin.Event) {
	k.mu.Lock()
	k.pending = append(k.pending, e)
	k.trim()
	k.mu.Unlock()
	signal(k.wake)
}

// signal sends a signal, unless one is pending.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// trim drops the oldest pending events if there are more than the Journal has in memory. The caller holds mu.
func (k *keeper) trim() {
	if over := len(k.pending) - history; over > 0 {
		k.pending = k.pending[over:]
		k.left += over
	}
}

// again is the pause before another attempt.
var again = backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// run writes events until ctx ends, and then the pending ones. Events that cannot be written stay pending.
func (k *keeper) run(ctx context.Context) {
	failures := 0
	for more := true; more; {
		more = k.wait(ctx, failures)
		if k.writePending() {
			failures = 0
		} else {
			failures++
		}
	}
}

// reread retries a failed read until it succeeds, so that the trouble ends when its cause is fixed. It returns when ctx ends.
func (k *keeper) reread(ctx context.Context) {
	for {
		select {
		case <-k.unreadable:
		case <-ctx.Done():
			return
		}
		for failures := 1; backoff.Pause(ctx, again.After(failures)); failures++ {
			_, err := load(k.path)
			if k.report(&k.reading, err); err == nil {
				break
			}
		}
	}
}

// writePending writes the pending events, and reports whether that succeeded.
func (k *keeper) writePending() bool {
	k.mu.Lock()
	events := k.pending
	k.pending = nil
	k.mu.Unlock()
	if len(events) == 0 {
		return true
	}
	err := k.write(events)
	k.report(&k.writing, err)
	k.mu.Lock()
	left := 0
	if err != nil {
		k.pending = append(events, k.pending...)
		k.trim()
	} else {
		left, k.left = k.left, 0
	}
	k.mu.Unlock()
	if left > 0 {
		k.log.Warn("more events came than could be written: the oldest will be missing after a restart", "file", k.path, "missing", left)
	}
	return err == nil
}

// wait waits until there may be events to write: after failures for a pause, otherwise for a signal. It returns false when ctx has ended.
func (k *keeper) wait(ctx context.Context, failures int) bool {
	if failures > 0 {
		return backoff.Pause(ctx, again.After(failures))
	}
	select {
	case <-k.wake:
		return true
	case <-ctx.Done():
		return false
	}
}

// report records the result of an attempt. It logs the first of several failures and their end, and reports whether this is the first.
func (k *keeper) report(t *trouble, err error) (begun bool) {
	k.mu.Lock()
	failed := t.err != nil
	t.err = err
	if !failed {
		t.since = time.Now()
	}
	k.mu.Unlock()
	switch {
	case err != nil && !failed:
		k.log.Warn(t.what+"; "+t.remedy, "file", k.path, "error", err)
		return true
	case err == nil && failed:
		k.log.Info(t.ended, "file", k.path)
	}
	return false
}

// trouble returns the current problem, and since when it exists; empty if there is none.
func (k *keeper) trouble() (message string, since time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range []*trouble{&k.writing, &k.reading} {
		if t.err != nil {
			return fmt.Sprintf("%s: %v; %s", t.what, t.err, t.remedy), t.since
		}
	}
	return "", time.Time{}
}

// write appends events to the file, which it opens each time: the device can be unmounted, and another one mounted there.
func (k *keeper) write(events []plugin.Event) error {
	var lines bytes.Buffer
	switch info, err := os.Stat(k.path); {
	case err != nil:
	case info.Size() >= k.max:
		if err := os.Rename(k.path, older(k.path)); err != nil {
			return err
		}
	case info.Size() > 0 && !k.began:
		lines.WriteByte('\n') // ends a line that a crash cut short; empty lines are skipped when reading
	}
	encoder := json.NewEncoder(&lines)
	for _, e := range events {
		if err := encoder.Encode(e); err != nil { // another attempt would fail too
			k.log.Warn("an event cannot be encoded: it will be missing after a restart", "event", e.Seq, "error", err)
		}
	}
	err := k.append(lines.Bytes())
	k.began = k.began || err == nil
	return err
}

// append appends to the file, and leaves it unchanged on failure. A missing file is created only in the directory that was used last: in
// another one, such as the mount point of a file system that is not mounted at the moment, it would be hidden later.
func (k *keeper) append(text []byte) error {
	dir, err := os.OpenRoot(filepath.Dir(k.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	at, err := dir.Stat(".")
	if err != nil {
		return err
	}
	flags, name := os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, filepath.Base(k.path)
	if k.dir == nil || os.SameFile(at, k.dir) {
		flags |= os.O_CREATE
	}
	file, err := dir.OpenFile(name, flags, 0o600)
	if err != nil {
		return err
	}
	if err := regular.CheckFile(file); err != nil {
		return err
	}
	k.dir = at
	info, err := file.Stat()
	if err == nil {
		if _, err = file.Write(text); err != nil {
			err = errors.Join(err, file.Truncate(info.Size()))
		}
	}
	return errors.Join(err, file.Close())
}

func older(path string) string { return path + ".1" }

// load returns the events in the files, oldest first. It skips incomplete lines, and others that are not events.
func load(path string) ([]plugin.Event, error) {
	var events []plugin.Event
	for _, file := range []string{older(path), path} {
		text, err := regular.Read(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for line := range bytes.Lines(text) {
			var e plugin.Event
			if json.Unmarshal(line, &e) != nil || e.Seq == 0 || e.Kind == "" {
				continue
			}
			bySeq := func(e plugin.Event, seq uint64) int { return cmp.Compare(e.Seq, seq) }
			if i, found := slices.BinarySearchFunc(events, e.Seq, bySeq); found && events[i].Time.Equal(e.Time) {
				continue // written twice, because closing the file failed the first time
			}
			if len(events) > 0 && e.Seq <= events[len(events)-1].Seq {
				events = nil // the daemon that wrote e had not read them: numbers only grow
			}
			events = append(events, e)
		}
	}
	return events, nil
}
