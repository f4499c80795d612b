package pluginwatcher_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/trust"
)

const alice, bob = 60001, 60002

// scene is a watcher of one plugin directory with a handler for the types T and U.
type scene struct {
	dir     string
	watcher *pluginwatcher.Watcher
	calls   *calls

	mu      sync.Mutex
	events  []plugin.Event
	reasons map[trust.Reason]int
}

func newScene(t *testing.T, policy trust.Policy, mode os.FileMode) *scene {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have sockets of other users")
	}
	s := &scene{dir: filepath.Join(t.TempDir(), "plugins"), calls: newCalls(), reasons: map[trust.Reason]int{}}
	for _, dir := range []string{filepath.Dir(filepath.Dir(s.dir)), filepath.Dir(s.dir)} {
		try(t, os.Chmod(dir, 0o755))
	}
	try(t, os.Mkdir(s.dir, 0o755))
	try(t, os.Chmod(s.dir, mode))
	judge, err := trustjudge.New(policy)
	try(t, err)
	s.watcher = pluginwatcher.With(&pipeline.Watcher{
		Dirs: []string{s.dir}, Trust: judge,
		Registration: reconciler.Config{
			Observe: func(e plugin.Event) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.events = append(s.events, e)
			},
			Refused: func(r trust.Reason) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.reasons[r]++
			},
		},
	})
	s.watcher.AddHandler("T", s.calls)
	s.watcher.AddHandler("U", s.calls)
	start(t, s.watcher)
	return s
}

func (s *scene) path(name string) string { return filepath.Join(s.dir, name) }

// awaitEvent waits for an event of a kind at a path whose message has a text.
func (s *scene) awaitEvent(t *testing.T, kind plugin.EventKind, path, text string) {
	t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		for _, e := range s.events {
			if e.Kind == kind && e.SocketPath == path && strings.Contains(e.Message, text) {
				s.mu.Unlock()
				return
			}
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Fatalf("no event %s at %s with %q among %+v", kind, path, text, s.events)
}

func (s *scene) wantReason(t *testing.T, want trust.Reason) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reasons[want] == 0 {
		t.Errorf("%s was not counted: %v", want, s.reasons)
	}
}

// serveAs runs a plugin as a user. told has what it is told; stop ends it.
func serveAs(t *testing.T, uid int, announced, path string) (told *bufio.Scanner, stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), pluginSocket+"="+path, pluginAs+"="+announced)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	try(t, err)
	r, w, err := os.Pipe()
	try(t, err)
	cmd.Stdout = w
	try(t, cmd.Start())
	try(t, w.Close())
	t.Cleanup(func() { _ = r.Close() })
	told = bufio.NewScanner(r)
	if !told.Scan() || told.Text() != "serving" {
		t.Fatalf("the plugin does not serve: %q", told.Text())
	}
	stop = sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	return told, stop
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func users(ids ...int) (list []string) {
	for _, id := range ids {
		list = append(list, strconv.Itoa(id))
	}
	return list
}

// A directory in which others may write is refused with all that is in it, and used again when it is mended.
func TestWritableDirectory(t *testing.T) {
	s := newScene(t, trust.Policy{}, 0o755)
	path := s.path("a.sock")
	serveAs(t, 0, "T/a", path)
	s.calls.await(t, "validate a false", "register a a.sock")
	awaitState(t, s.watcher, path, plugin.StateRegistered)
	try(t, os.Chmod(s.dir, 0o777))
	s.calls.await(t, "deregister a")
	awaitState(t, s.watcher, s.dir, plugin.StateRefused)
	s.awaitEvent(t, plugin.EventRefused, s.dir, "may be written by everyone (mode 0777)")
	s.awaitEvent(t, plugin.EventDegraded, s.dir, "chmod 0750 "+s.dir)
	s.awaitEvent(t, plugin.EventDeregistered, path, "may be written by everyone")
	if c := s.watcher.Pipeline().Conditions(); len(c) != 1 || c[0].Path != s.dir {
		t.Errorf("conditions: %v", c)
	}
	s.wantReason(t, trust.Writable)
	serveAs(t, 0, "T/b", s.path("b.sock"))
	try(t, os.Mkdir(s.path("sub"), 0o755))
	try(t, os.Chmod(path, 0o600))
	time.Sleep(100 * time.Millisecond) // for what must not happen
	s.calls.await(t)
	try(t, os.Chmod(s.dir, 0o750))
	awaitState(t, s.watcher, path, plugin.StateRegistered)
	awaitState(t, s.watcher, s.path("b.sock"), plugin.StateRegistered)
	if c := s.watcher.Pipeline().Conditions(); len(c) != 0 {
		t.Errorf("conditions: %v", c)
	}
}

func TestWritableSubdirectory(t *testing.T) {
	s := newScene(t, trust.Policy{}, 0o755)
	sub := s.path("sub")
	try(t, os.Mkdir(sub, 0o700))
	try(t, os.Chmod(sub, 0o770))
	try(t, os.Chown(sub, 0, alice))
	awaitState(t, s.watcher, sub, plugin.StateRefused)
	serveAs(t, 0, "T/a", filepath.Join(sub, "a.sock"))
	s.awaitEvent(t, plugin.EventRefused, sub, "may be written by group 60001 (mode 0770)")
	s.awaitEvent(t, plugin.EventDegraded, sub, "may be written by group 60001")
	try(t, os.Chown(sub, 0, 0))
	s.calls.await(t, "validate a false", "register a a.sock")
}

// A stranger's directory and socket are refused without the host being called ill, and used when they change hands.
func TestStrangers(t *testing.T) {
	s := newScene(t, trust.Policy{Sticky: true}, 0o777|os.ModeSticky)
	path := s.path("a.sock")
	serveAs(t, alice, "T/a", path)
	awaitState(t, s.watcher, path, plugin.StateRefused)
	s.awaitEvent(t, plugin.EventRefused, path, "belongs to user 60001")
	s.wantReason(t, trust.SocketOwner)
	sub := s.path("sub")
	try(t, os.Mkdir(sub, 0o700))
	try(t, os.Chown(sub, alice, alice))
	awaitState(t, s.watcher, sub, plugin.StateRefused)
	if c := s.watcher.Pipeline().Conditions(); len(c) != 0 {
		t.Errorf("a stranger made conditions: %v", c)
	}
	// The file changes hands, and who listens does not.
	try(t, os.Chown(path, 0, 0))
	s.awaitEvent(t, plugin.EventRefused, path, "runs as user 60001")
	s.wantReason(t, trust.Listener)
	s.calls.await(t)
}

func TestSymbolicLink(t *testing.T) {
	s := newScene(t, trust.Policy{}, 0o755)
	elsewhere := filepath.Join(filepath.Dir(s.dir), "a.sock")
	serveAs(t, 0, "T/a", elsewhere)
	link := s.path("a.sock")
	try(t, os.Symlink(elsewhere, link))
	awaitState(t, s.watcher, link, plugin.StateRefused)
	s.awaitEvent(t, plugin.EventRefused, link, "is a symbolic link")
	s.wantReason(t, trust.Link)
	try(t, os.Remove(link))
	try(t, os.Rename(elsewhere, link))
	s.calls.await(t, "validate a false", "register a a.sock")
}

// In a sticky directory configured users register what they may, and nobody takes another's name.
func TestTypesAndNames(t *testing.T) {
	s := newScene(t, trust.Policy{
		Owners: trust.Accounts{Users: users(alice, bob)}, Types: map[string]trust.Type{"U": {Users: users(alice)}}, Sticky: true,
	}, 0o777|os.ModeSticky)
	_, stopAlice := serveAs(t, alice, "T/a", s.path("alice.sock"))
	s.calls.await(t, "validate a false", "register a alice.sock")
	told, _ := serveAs(t, bob, "T/a", s.path("bob.sock"))
	s.awaitEvent(t, plugin.EventRefused, s.path("bob.sock"), "the name a of type T is that of a plugin of user 60001")
	s.wantReason(t, trust.Name)
	if !told.Scan() || !strings.HasPrefix(told.Text(), "told false the name a of type T") {
		t.Errorf("bob was told %q", told.Text())
	}
	awaitState(t, s.watcher, s.path("alice.sock"), plugin.StateRegistered)

	told, _ = serveAs(t, bob, "U/b", s.path("b.sock"))
	if !told.Scan() || !strings.HasPrefix(told.Text(), "told false user 60002 may not register plugins of type U") {
		t.Errorf("bob was told %q", told.Text())
	}
	awaitState(t, s.watcher, s.path("b.sock"), plugin.StateRefused)
	s.wantReason(t, trust.PluginType)
	s.calls.await(t)
	// When alice's ends the name is free.
	stopAlice()
	s.calls.await(t, "deregister a", "validate a false", "register a bob.sock")
}

// A socket on which root listens is still the plugin of its owner: a user who has root listen for him, as socket activation does, gains
// nothing by it.
func TestRootListensForAnother(t *testing.T) {
	s := newScene(t, trust.Policy{
		Owners: trust.Accounts{Users: users(alice, bob)}, Types: map[string]trust.Type{"U": {Users: users(alice)}},
	}, 0o755)
	made := filepath.Join(filepath.Dir(s.dir), "b.sock")
	told, _ := serveAs(t, 0, "U/b", made)
	try(t, os.Chown(made, bob, bob))
	try(t, os.Rename(made, s.path("b.sock")))
	if !told.Scan() || !strings.HasPrefix(told.Text(), "told false user 60002 may not register plugins of type U") {
		t.Errorf("bob was told %q", told.Text())
	}
	awaitState(t, s.watcher, s.path("b.sock"), plugin.StateRefused)
}

// What a user puts in the place of his socket between the look at it and the connect does not make him anybody else.
func TestLinkIntoAnothersSocket(t *testing.T) {
	s := newScene(t, trust.Policy{Owners: trust.Accounts{Users: users(alice)}}, 0o755)
	hidden := filepath.Join(filepath.Dir(s.dir), "hidden")
	try(t, os.Mkdir(hidden, 0o700))
	serveAs(t, 0, "T/root", filepath.Join(hidden, "a.sock"))
	// The directory with alice's socket is exchanged for a link to one with a socket of the same name.
	sub := s.path("sub")
	try(t, os.Mkdir(sub, 0o755))
	try(t, os.Chown(sub, alice, alice))
	serveAs(t, alice, "T/alice", filepath.Join(sub, "a.sock"))
	s.calls.await(t, "validate alice false", "register alice a.sock")
	try(t, os.Rename(sub, s.path(".away")))
	try(t, os.Symlink(hidden, sub))
	s.calls.await(t, "deregister alice")
	awaitState(t, s.watcher, sub, plugin.StateRefused)
	s.calls.await(t)
}

// A socket that somebody removes while its plugin serves is missed, and its return noticed.
func TestUnlinked(t *testing.T) {
	s := newScene(t, trust.Policy{}, 0o755)
	path := s.path("a.sock")
	serveAs(t, 0, "T/a", path)
	s.calls.await(t, "validate a false", "register a a.sock")
	awaitState(t, s.watcher, path, plugin.StateRegistered)
	try(t, os.Rename(path, s.path(".taken")))
	s.calls.await(t, "deregister a")
	s.awaitEvent(t, plugin.EventUnlinked, path, "still serves on it")
	try(t, os.Rename(s.path(".taken"), path))
	s.calls.await(t, "validate a false", "register a a.sock")
}
