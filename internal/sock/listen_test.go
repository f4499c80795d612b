//go:build linux || darwin

package sock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestListen(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "control.sock")
	l, err := Listen(path, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	accept(t, l)
	if got := mustStat(t, path).Mode.Perm(); got != 0o660 {
		t.Errorf("mode %v, want 0660", got)
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("address %q, want %q", got, path)
	}
	if peer, err := Probe(t.Context(), path); err != nil || peer.PID != os.Getpid() {
		t.Errorf("probe: %+v, %v", peer, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

func TestListenLongestPath(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, strings.Repeat("s", MaxPath-len(dir)-1))
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accept(t, l)
	if _, err := Probe(t.Context(), path); err != nil {
		t.Error(err)
	}

	_, err = Listen(path+"s", 0o600)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(MaxPath)) || !strings.Contains(err.Error(), fmt.Sprint(MaxPath+1)) {
		t.Errorf("a path that is too long: %v", err)
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	stale(t, path)
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	accept(t, l)
	if _, err := Probe(t.Context(), path); err != nil {
		t.Error(err)
	}
}

func TestListenLeavesOthersAlone(t *testing.T) {
	dir := tempDir(t)
	living, file, full := filepath.Join(dir, "living"), filepath.Join(dir, "file"), filepath.Join(dir, "full")
	serve(t, living)
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		living:                          "another process is listening on " + living,
		file:                            "not a socket",
		filepath.Join(dir, "none", "s"): "no such file or directory",
	} {
		before := names(t, dir)
		_, err := Listen(path, 0o600)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Listen(%s): %v, want %q", path, err, want)
		}
		if errors.Is(err, ErrInUse) != (path == living) {
			t.Errorf("Listen(%s): errors.Is(err, ErrInUse) = %v", path, errors.Is(err, ErrInUse))
		}
		if after := names(t, dir); !slices.Equal(before, after) {
			t.Errorf("Listen(%s) changed the directory: %q, was %q", path, after, before)
		}
	}
	fillBacklog(t, full)
	if _, err := Listen(full, 0o600); !errors.Is(err, ErrInUse) {
		t.Errorf("a socket with a full backlog: %v", err)
	}
}

func TestCloseRemovesOnlyItsOwnSocket(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	serve(t, path)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Probe(t.Context(), path); err != nil {
		t.Errorf("the other socket: %v", err)
	}
}

// TestOneOwner has many starters on one path at once, over a stale socket: exactly one wins, it is reachable, and the others say why.
func TestOneOwner(t *testing.T) {
	for range 20 {
		path := filepath.Join(tempDir(t), "s")
		stale(t, path)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var won []*Listener
		for range 16 {
			wg.Go(func() {
				l, err := Listen(path, 0o600)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, l)
				} else if !errors.Is(err, ErrInUse) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("%d owners", len(won))
		}
		accept(t, won[0])
		if _, err := Probe(t.Context(), path); err != nil {
			t.Error(err)
		}
		if err := won[0].Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOwnerComesAndGoes has starters that close at once again: whoever says it owns the path is reachable there meanwhile.
func TestOwnerComesAndGoes(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for owned := 0; owned < 20; {
				l, err := Listen(path, 0o600)
				if errors.Is(err, ErrInUse) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				owned++
				if now, err := Stat(path); err != nil || now.ID != l.id {
					t.Errorf("at the path is %v (%v), the owner's is %v", now.ID, err, l.id)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestOwnerIsKilled(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	var last *exec.Cmd
	for range 3 {
		if last != nil {
			if _, err := Listen(path, 0o600); !errors.Is(err, ErrInUse) {
				t.Errorf("while the owner lives: %v", err)
			}
			_ = last.Process.Kill()
			_ = last.Wait()
		}
		cmd, said := startChild(t, "own", path)
		if said != "listening" {
			t.Fatal(said)
		}
		last = cmd
	}
}
