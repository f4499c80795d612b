package dirwatch

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// patience is how long a test waits for what must come. It is no measure of speed.
const patience = 2 * time.Minute

// rig is a watcher under test and the directory in which a test acts.
type rig struct {
	t    testing.TB
	dir  string
	w    *Watcher
	wrap func(run func()) // called on the goroutine of Run
	stop func()

	mu      sync.Mutex
	cond    *sync.Cond
	facts   []string // not expected yet
	state   map[string]plugin.SocketID
	update  Update // the last one
	updates int
	marks   int
}

// judge refuses one path, and one user other than root is privileged, if any.
type judge struct {
	refused    string
	privileged uint32
}

func (j judge) Admit(path string, _ sock.Info) error {
	if path == j.refused {
		return os.ErrPermission
	}
	return nil
}

func (j judge) Privileged(uid uint32) bool { return j.privileged != 0 && uid == j.privileged }

// newRig makes a rig whose roots are the given directories below a fresh one. They are not created.
func newRig(t testing.TB, roots ...string) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "dw") // short, because a socket's path is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, dir: dir, wrap: func(run func()) { run() }, state: map[string]plugin.SocketID{}}
	r.cond = sync.NewCond(&r.mu)
	paths := make([]Root, len(roots))
	for i, root := range roots {
		paths[i] = Root{Path: filepath.Join(dir, root)}
	}
	r.w = newWatcher(t, r.notify, paths...)
	return r
}

func newWatcher(t testing.TB, notify func(Update), roots ...Root) *Watcher {
	t.Helper()
	w, err := New(notify, roots...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// start runs the watcher until the end of the test, or until stop is called.
func (r *rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go r.wrap(func() { done <- r.w.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
	r.t.Cleanup(r.stop)
	r.await("the first scan", func() bool { return r.update.Scanned })
}

func (r *rig) notify(u Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range u.Facts {
		r.facts = append(r.facts, r.apply(f))
	}
	r.update = u
	r.updates++
	r.cond.Broadcast()
}

// settle waits until the facts agree with the tree.
func (r *rig) settle() {
	r.t.Helper()
	r.await("agreement with the tree", func() bool {
		r.facts = nil
		return maps.Equal(r.state, r.walk())
	})
}

// walk finds the sockets that are to be known, in a way of its own.
func (r *rig) walk() map[string]plugin.SocketID {
	found := map[string]plugin.SocketID{}
	for _, root := range r.w.roots {
		_ = filepath.WalkDir(root.Path, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // It is gone meanwhile.
			}
			if path != root.Path && strings.HasPrefix(d.Name(), ".") {
				if d.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
			if d.Type() == fs.ModeSocket {
				if info, err := sock.Stat(path); err == nil {
					found[path] = info.ID
				}
			}
			return nil
		})
	}
	return found
}

// apply brings state up to date and gives the fact in the notation of scripts.
func (r *rig) apply(f Fact) string {
	rel, err := filepath.Rel(r.dir, f.Path)
	if err != nil || f.Root >= len(r.w.roots) || !within(f.Path, r.w.roots[f.Root].Path) {
		r.t.Errorf("fact %+v is about a path outside of its root", f)
	}
	old, known := r.state[f.Path]
	switch {
	case !f.Present:
		if !known || old != f.Info.ID {
			r.t.Errorf("absent fact for %s (%v), known: %v %v", rel, f.Info.ID, known, old)
		}
		delete(r.state, f.Path)
		return "-" + rel
	case f.MovedFrom != "":
		from, _ := filepath.Rel(r.dir, f.MovedFrom)
		if r.state[f.MovedFrom] != f.Info.ID {
			r.t.Errorf("%s is said to be moved from %s, where another socket was", rel, from)
		}
		delete(r.state, f.MovedFrom)
		r.state[f.Path] = f.Info.ID
		return "+" + rel + "<" + from
	}
	r.state[f.Path] = f.Info.ID
	switch {
	case !known:
		return "+" + rel
	case old == f.Info.ID:
		return fmt.Sprintf("~%s %#o", rel, f.Info.Mode.Perm())
	default:
		return "*" + rel
	}
}

// await waits until cond, which is called with the lock held, is true.
func (r *rig) await(what string, cond func() bool) {
	r.t.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		late = true
		r.cond.Broadcast()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !cond() {
		if late {
			r.t.Fatalf("%s did not come; facts %q, degraded %v", what, r.facts, r.update.Degraded)
		}
		r.cond.Wait()
	}
}

// want checks that the next facts are these.
func (r *rig) want(facts ...string) {
	r.t.Helper()
	r.await(fmt.Sprintf("facts %q", facts), func() bool { return len(r.facts) >= len(facts) })
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.facts[:len(facts)]
	r.facts = r.facts[len(facts):]
	if fmt.Sprint(got) != fmt.Sprint(facts) {
		r.t.Fatalf("facts %q, want %q; then %q", got, facts, r.facts)
	}
}

// degraded waits until a condition for the path (relative to the rig) contains text, or until none does if text is empty.
func (r *rig) degraded(path, text string) {
	r.t.Helper()
	abs := filepath.Join(r.dir, path)
	r.await(fmt.Sprintf("condition %q for %s", text, path), func() bool {
		for _, c := range r.update.Degraded {
			if c.Path == abs {
				return text != "" && strings.Contains(c.Reason, text)
			}
		}
		return text == ""
	})
}

// quiet checks that no unexpected fact came: whatever was to come has come when a new socket is reported.
func (r *rig) quiet() {
	r.t.Helper()
	r.marks++
	mark := fmt.Sprintf("%s/mark%d", filepath.Base(r.w.roots[0].Path), r.marks)
	r.do("sock " + mark)
	r.want("+" + mark)
	r.do("rm " + mark)
	r.want("-" + mark)
}

// do acts on files. Commands are separated by semicolons.
func (r *rig) do(line string) {
	r.t.Helper()
	for command := range strings.SplitSeq(line, ";") {
		args := strings.Fields(command)
		p := func(i int) string { return filepath.Join(r.dir, args[i]) }
		var err error
		switch args[0] {
		case "mkdir":
			err = os.MkdirAll(p(1), 0o755)
		case "sock":
			err = makeSocket(p(1))
		case "tick":
			err = r.tick()
		case "file":
			err = os.WriteFile(p(1), []byte("x"), 0o644)
		case "rm":
			err = os.Remove(p(1))
		case "rmall":
			err = os.RemoveAll(p(1))
		case "mv":
			err = os.Rename(p(1), p(2))
		case "ln":
			err = os.Link(p(1), p(2))
		case "symlink":
			err = os.Symlink(args[1], p(2))
		case "chmod":
			var mode uint64
			if mode, err = strconv.ParseUint(args[1], 8, 32); err == nil {
				err = os.Chmod(p(2), fs.FileMode(mode))
			}
		case "start":
			r.start()
		case "stop":
			r.stop()
		case "quiet":
			r.quiet()
		case "degraded":
			r.degraded(args[1], strings.Join(args[2:], " "))
		default:
			r.t.Fatalf("no such command: %q", command)
		}
		if err != nil {
			r.t.Fatalf("%s: %v", command, err)
		}
	}
}

// tick waits until the file system's clock moves, so that whatever is made next is younger.
func (r *rig) tick() error {
	probe := filepath.Join(r.dir, "tick")
	var first int64
	for {
		if err := os.Mkdir(probe, 0o700); err != nil {
			return err
		}
		info, err := sock.Stat(probe)
		if err != nil {
			return err
		}
		if err := os.Remove(probe); err != nil {
			return err
		}
		if first == 0 {
			first = info.ID.Birth
		}
		if info.ID.Birth != first {
			return nil
		}
	}
}

// makeSocket leaves a socket file on which nobody listens.
func makeSocket(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

// run runs a script: lines that start with ">" act, all others are the facts that must come next, in this order.
//
//	+p      a socket appeared          -p     it is gone         +p<q  it was renamed from q
//	*p      another one took its place  ~p 0600  its mode changed
//	-*p     it is gone, and another one took its place: two renames, and the watcher may have looked after the first
func (r *rig) run(script string) {
	r.t.Helper()
	for line := range strings.SplitSeq(script, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case strings.HasPrefix(line, ">"):
			r.do(strings.TrimSpace(line[1:]))
		case strings.HasPrefix(line, "-*"):
			r.await("the end of "+line[2:], func() bool { return len(r.facts) > 0 })
			r.mu.Lock()
			between := r.facts[0] == "-"+line[2:]
			r.mu.Unlock()
			if between {
				r.want("-"+line[2:], "+"+line[2:])
			} else {
				r.want(line[1:])
			}
		default:
			r.want(line)
		}
	}
}
