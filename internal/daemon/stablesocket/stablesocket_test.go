package stablesocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

func TestStableSocketLeadsToCurrentInstance(t *testing.T) {
	b := newBed(t, nil)
	one, two := b.serve("one"), b.serve("two")
	b.register("T", "n", one)
	c := b.client("T", "n")
	path := socketPath(b.Dir, named("T", "n"))
	for path, want := range map[string]fs.FileMode{path: fs.ModeSocket | 0o660, filepath.Dir(path): fs.ModeDir | 0o750, b.Dir: fs.ModeDir | 0o750} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info.Mode(), err, want)
		}
	}
	if got := b.ask(c); got != "one" {
		t.Errorf("asked %s", got)
	}
	old, err := c.FullDuplexCall(b.ctx())
	if err != nil {
		t.Fatal(err)
	}
	<-one.calls
	b.register("T", "n", two)
	if got := b.ask(c); got != "two" {
		t.Errorf("after the upgrade asked %s", got)
	}
	b.deregister("T", "n", "one")
	if err := old.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Recv(); err != nil {
		t.Errorf("the stream at the old instance: %v", err)
	}
	b.deregister("T", "n", "two")
	b.register("T", "n", one)
	if got := b.ask(c); got != "one" {
		t.Errorf("after the return asked %s", got)
	}
	b.stopRun()
	if _, err := old.Recv(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != server.ErrStopping.Error() {
		t.Errorf("at the end the stream got %v", err)
	}
	b.socket("T", "n", false)
}

func TestStableSocketOfPluginThatIsGone(t *testing.T) {
	t.Run("at once", func(t *testing.T) {
		b := newBed(t, nil)
		one := b.serve("one")
		b.register("csi-node", "n", one)
		c := b.client("csi-node", "n")
		b.deregister("csi-node", "n", "one")
		if got := b.ask(c); !strings.Contains(got, "code = Unavailable") || !strings.Contains(got, "csi-node") {
			t.Errorf("got %s", got)
		}
		b.socket("csi-node", "n", true)
	})
	t.Run("after the grace", func(t *testing.T) {
		b := newBed(t, func(d *Sockets) { d.grace = time.Millisecond })
		one := b.serve("one")
		b.register("T", "n", one)
		b.register("T", "other", one)
		s, err := b.client("T", "n").FullDuplexCall(b.ctx())
		if err != nil {
			t.Fatal(err)
		}
		<-one.calls
		b.deregister("T", "n", "one")
		b.socket("T", "n", false)
		if err := s.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Errorf("the call in progress: %v", err)
		}
		b.register("T", "n", one)
		if got := b.ask(b.client("T", "n")); got != "one" {
			t.Errorf("at the new socket asked %s", got)
		}
		b.socket("T", "other", true)
		b.stopRun()
		if _, err := s.Recv(); status.Convert(err).Message() != server.ErrStopping.Error() {
			t.Errorf("at the end the stream got %v", err)
		}
	})
	t.Run("back in time", func(t *testing.T) {
		b := newBed(t, func(d *Sockets) { d.grace = 2 * time.Second })
		one := b.serve("one")
		b.register("T", "n", one)
		b.register("T", "other", one)
		b.socket("T", "other", true)
		before, err := sock.Stat(b.socket("T", "n", true))
		if err != nil {
			t.Fatal(err)
		}
		b.deregister("T", "n", "one")
		b.register("T", "next", one)
		b.socket("T", "next", true) // so it is noticed that n is gone
		b.register("T", "n", one)
		b.deregister("T", "other", "one")
		b.socket("T", "other", false) // it was due later
		if after, err := sock.Stat(socketPath(b.Dir, named("T", "n"))); err != nil || after.ID != before.ID {
			t.Errorf("the socket was removed: %v", err)
		}
	})
	t.Run("too many", func(t *testing.T) {
		b := newBed(t, nil)
		one := b.serve("one")
		for i := range maxGone + 1 {
			b.register("T", fmt.Sprint(i), one)
		}
		for i := range maxGone + 1 {
			b.socket("T", fmt.Sprint(i), true)
		}
		for i := range maxGone + 1 {
			b.deregister("T", fmt.Sprint(i), "one")
		}
		until(t, "one socket too many went", func() bool {
			files, err := filepath.Glob(filepath.Join(b.Dir, "T", "*.sock"))
			return err == nil && len(files) == maxGone
		})
	})
}

func TestStableSocketsOfHostileNames(t *testing.T) {
	b := newBed(t, nil)
	names := []string{"..", "../../x", "a\x00b", ".", ".hidden", "a/b", "a~2Fb", "A", "a", strings.Repeat("n", 4000), "\xff\n", "x.sock"}
	for n, name := range names {
		b.register(names[len(names)-1-n], name, b.serve(fmt.Sprint(n)))
	}
	for n, name := range names {
		if got := b.ask(b.client(names[len(names)-1-n], name)); got != fmt.Sprint(n) {
			t.Errorf("%q: asked %s", name, got)
		}
	}
	if entries, err := os.ReadDir(b.tmp); err != nil || len(entries) != 1+len(names) {
		t.Errorf("something lies beside the directory: %v, %v", entries, err)
	}
}

// TestStableSocketsUpgrade replaces a plugin under 64 callers that do nothing but call: none may see an error.
func TestStableSocketsUpgrade(t *testing.T) {
	const callers, upgrades = 64, 5
	b := newBed(t, nil)
	current := b.serve("0")
	b.register("T", "n", current)
	b.socket("T", "n", true)
	var unary, streamed atomic.Int64
	done := make(chan struct{})
	var running sync.WaitGroup
	for i := range callers {
		c := b.client("T", "n")
		running.Go(func() {
			ctx := t.Context()
			for {
				select {
				case <-done:
					return
				default:
				}
				if i%2 == 0 {
					if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
						t.Errorf("unary: %v", err)
						return
					}
					unary.Add(1)
					continue
				}
				if err := converse(ctx, c, 20); err != nil {
					t.Errorf("stream: %v", err)
					return
				}
				streamed.Add(1)
			}
		})
	}
	for n := range upgrades {
		before := [2]int64{unary.Load(), streamed.Load()}
		next := b.serve(fmt.Sprint(n + 1))
		b.register("T", "n", next)
		b.deregister("T", "n", current.id)
		current.server.GracefulStop()
		current = next
		until(t, "calls succeed after the upgrade", func() bool {
			return t.Failed() || unary.Load() > before[0]+callers && streamed.Load() > before[1]+8
		})
	}
	close(done)
	running.Wait()
	t.Logf("%d upgrades, %d unary calls, %d streams of 20 messages", upgrades, unary.Load(), streamed.Load())
}

// converse has a stream of n messages, each of which is answered.
func converse(ctx context.Context, c testpb.TestServiceClient, n int) error {
	s, err := c.FullDuplexCall(ctx)
	for i := 0; err == nil && i < n; i++ {
		if err = s.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte("x")}}); err == nil {
			_, err = s.Recv()
		}
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err == nil {
		if _, err = s.Recv(); errors.Is(err, io.EOF) {
			return nil
		}
	}
	return err
}

// leave makes a socket on which nobody accepts.
func leave(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestStableSocketsOfAShortLife: a daemon that is told to end at once leaves nothing either of one that was killed before it.
func TestStableSocketsOfAShortLife(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	registry, err := dynamicplugins.Open(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Shutdown()
	if err := registry.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: "T", Name: "n", AllocID: "one", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: dir + "/none"},
	}); err != nil {
		t.Fatal(err)
	}
	d := &Sockets{Dir: dir, Registry: registry, Calls: registry, Conns: manyConns(), Log: discard}
	if err := d.Init(); err != nil {
		t.Fatal(err)
	}
	left := []string{socketPath(dir, named("T", "n")), socketPath(dir, named("T", "other"))}
	for _, path := range left {
		leave(t, path)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.Run(ctx)
	for _, path := range left {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

// TestStableSocketsLeftBehind finds what a daemon that was killed has left, and things of others.
func TestStableSocketsLeftBehind(t *testing.T) {
	var left, hidden, foreign, file, unborn string
	b := newBed(t, func(d *Sockets) {
		folder := filepath.Join(d.Dir, "T")
		if err := os.MkdirAll(folder, 0o750); err != nil {
			t.Fatal(err)
		}
		left, hidden, foreign = filepath.Join(folder, "left.sock"), filepath.Join(folder, ".left.sock"), filepath.Join(folder, "foreign.sock")
		file = filepath.Join(folder, "file.sock")
		for _, path := range []string{left, hidden, filepath.Join(folder, "n.sock"), foreign} {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			if path == foreign {
				t.Cleanup(func() { _ = l.Close() })
			} else if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		// Of a daemon that was killed before the socket had its name.
		unborn = filepath.Join(folder, ".unborn.sock.lock")
		if err := errors.Join(os.WriteFile(unborn, nil, 0o600), os.Mkdir(filepath.Join(folder, ".unborn.sock.new"), 0o700)); err != nil {
			t.Fatal(err)
		}
		d.retry = time.Millisecond
		if err := d.Registry.RegisterPlugin(&dynamicplugins.PluginInfo{
			Type: "T", Name: "n", AllocID: "one", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{
				SocketPath: filepath.Join(filepath.Dir(d.Dir), "one"),
			},
		}); err != nil {
			t.Fatal(err)
		}
	})
	b.socket("T", "left", false)
	one := b.serve("one")
	until(t, "the socket that was left is replaced", func() bool {
		_, err := sock.Probe(t.Context(), socketPath(b.Dir, named("T", "n")))
		return err == nil
	})
	if got := b.ask(b.client("T", "n")); got != "one" {
		t.Errorf("in the place of a socket that was left asked %s", got)
	}
	b.register("T", "foreign", one)
	b.register("T", "file", one)
	until(t, "the condition says so", func() bool {
		c := b.Condition()
		return !c.OK && strings.HasPrefix(c.Message, "2 plugins have no stable socket")
	})
	for _, path := range []string{unborn, filepath.Join(filepath.Dir(unborn), ".unborn.sock.new")} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, path := range []string{hidden, foreign, file} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := b.ask(b.client("T", "file")); got != "one" {
		t.Errorf("after the path was free asked %s", got)
	}
	b.deregister("T", "foreign", "one")
	until(t, "the condition is gone", func() bool { return b.Condition().OK })
	b.stopRun()
	if _, err := os.Lstat(foreign); err != nil {
		t.Error(err)
	}
}
