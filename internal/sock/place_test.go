//go:build linux || darwin

package sock

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// agree lets anyone be replaced.
func agree(*net.UnixConn) error { return nil }

func placed(t *testing.T, path string, replace func(*net.UnixConn) error) *Placed {
	t.Helper()
	p, err := Place(t.Context(), path, 0o640, replace)
	if err != nil {
		t.Fatal(err)
	}
	accept(t, p)
	return p
}

// placedAt reports whether the socket is at the path.
func isPlacedAt(t *testing.T, p *Placed, path string) bool {
	t.Helper()
	return isAt(path, p.id)
}

func TestPlace(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	stale(t, path)
	p := placed(t, path, nil)
	if got := mustStat(t, path).Mode.Perm(); got != 0o640 {
		t.Errorf("mode %v, want 0640", got)
	}
	if _, err := Place(t.Context(), path, 0o600, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("a second Place: %v", err)
	}
	refusal := errors.New("no")
	if _, err := Place(t.Context(), path, 0o600, func(*net.UnixConn) error { return refusal }); !errors.Is(err, refusal) {
		t.Errorf("replace says no: %v", err)
	}
	if _, err := Place(t.Context(), path+strings.Repeat("x", MaxPath), 0o600, agree); err == nil {
		t.Error("a path that is too long, no error")
	}
	if restored, err := p.Withdraw(t.Context()); restored || err != nil {
		t.Errorf("Withdraw: %v, %v", restored, err)
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestPlaceReplacesTheLiving(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	for name, commit := range map[string]bool{"committed": true, "withdrawn": false} {
		t.Run(name, func(t *testing.T) {
			old := placed(t, path, nil)
			p := placed(t, path, agree)
			if !isPlacedAt(t, p, path) {
				t.Fatal("the new socket is not at the path")
			}
			if commit {
				if err := p.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := names(t, dir); !slices.Equal(got, []string{"s"}) {
					t.Errorf("after Commit there is %q", got)
				}
				if restored, err := old.Withdraw(t.Context()); restored || err != nil || !isPlacedAt(t, p, path) {
					t.Errorf("the old one's Withdraw: %v, %v", restored, err)
				}
			}
			if restored, err := p.Withdraw(t.Context()); restored == commit || err != nil || isPlacedAt(t, old, path) == commit {
				t.Errorf("Withdraw: %v, %v", restored, err)
			}
			if _, err := old.Withdraw(t.Context()); err != nil {
				t.Error(err)
			}
			if left := names(t, dir); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestWithdrawOfADeadPredecessor does not put back a socket on which nobody accepts.
func TestWithdrawOfADeadPredecessor(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	old := placed(t, path, nil)
	p := placed(t, path, agree)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if restored, err := p.Withdraw(t.Context()); restored || err != nil {
		t.Errorf("Withdraw: %v, %v", restored, err)
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestWithdrawOfAReplacedSocket has a replaced program end by itself: it is not put back although it still drains.
func TestWithdrawOfAReplacedSocket(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	old := placed(t, path, nil)
	p := placed(t, path, agree)
	if restored, err := old.Withdraw(t.Context()); restored || err != nil || !isPlacedAt(t, p, path) {
		t.Errorf("the old one's Withdraw: %v, %v", restored, err)
	}
	if restored, err := p.Withdraw(t.Context()); restored || err != nil {
		t.Errorf("Withdraw: %v, %v", restored, err)
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestPlaceAfterACrash finds what a program that died in the middle left: its hidden socket and that of a living one which it replaced.
func TestPlaceAfterACrash(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	old := placed(t, path, nil)
	crashed := placed(t, path, agree)
	if err := crashed.Close(); err != nil { // and no Withdraw
		t.Fatal(err)
	}
	if err := os.Mkdir(beside(path, "new"), 0o700); err != nil {
		t.Fatal(err)
	}
	stale(t, filepath.Join(beside(path, "new"), "s"))
	if _, err := Place(t.Context(), path, 0o600, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("while the replaced one lives: %v", err)
	}
	if !isPlacedAt(t, old, path) {
		t.Error("the replaced one is not back")
	}
	crashed = placed(t, path, agree)
	if err := errors.Join(crashed.Close(), old.Close()); err != nil {
		t.Fatal(err)
	}
	p := placed(t, path, nil)
	if got := names(t, dir); !isPlacedAt(t, p, path) || !slices.Equal(got, []string{"s"}) {
		t.Errorf("there is %q", got)
	}
}

// TestPlaceAtOnce has many programs replace each other and go: the path has the socket of one that is there, or none.
func TestPlaceAtOnce(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				p, err := Place(t.Context(), path, 0o600, agree)
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					err = p.Commit(t.Context())
				}
				_, werr := p.Withdraw(t.Context())
				if err := errors.Join(err, werr, p.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := Probe(t.Context(), path); err == nil {
		t.Error("somebody is left")
	}
	p := placed(t, path, nil)
	if _, err := p.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
