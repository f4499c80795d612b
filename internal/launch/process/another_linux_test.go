package process

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestSocketOfAnother reproduces PAINS 193: the socket of a process that has ended is removed, but not a socket that another process has
// bound at its path since, whether the host or the process had bound the first socket.
func TestSocketOfAnother(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		for name, known := range map[string]bool{"bound by the host": true, "bound by the process": false} {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				own, others, at := filepath.Join(dir, "own"), filepath.Join(dir, "others"), filepath.Join(dir, "at")
				for _, path := range []string{own, others} {
					stale(t, path)
				}
				spec := (&role{Stay: true, Deaf: true}).spec()
				spec.Remove = []string{others, own} // in this order
				if known {
					spec.Sockets = map[string]plugin.SocketID{own: idOf(t, own), others: idOf(t, others)}
				}
				h := startHostOf(t, hosting{Cgroup: cgroup, Procs: []Spec{spec}})
				all := h.everyone(t)
				if known { // a bound socket that does not listen yet
					stale(t, at)
				} else {
					l, err := net.Listen("unix", at)
					if err != nil {
						t.Fatal(err)
					}
					defer l.Close()
				}
				want := idOf(t, at)
				if err := os.Rename(at, others); err != nil {
					t.Fatal(err)
				}
				h.kill(t)
				await(t, "the socket of the process is removed", func() bool {
					_, err := os.Lstat(own)
					return errors.Is(err, fs.ErrNotExist)
				})
				awaitEnds(t, all)
				if got, err := sock.Stat(others); err != nil || got.ID.Inode != want.Inode {
					t.Errorf("after the host was killed, another process's socket is %+v, %v", got, err)
				}
			})
		}
	})
}

// TestSocketOfAnotherAfterEnd is TestSocketOfAnother for a process that ends before its host, and whose socket becomes known while it
// starts.
func TestSocketOfAnotherAfterEnd(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		dir := t.TempDir()
		own, others := filepath.Join(dir, "own"), filepath.Join(dir, "others")
		p := start(t, g, &role{}, func(s *Spec) {
			s.Remove, s.Sockets = []string{own, others}, map[string]plugin.SocketID{}
			s.Stdin = func() ([]byte, error) {
				for _, path := range s.Remove {
					stale(t, path)
					s.Sockets[path] = idOf(t, path)
				}
				return nil, nil
			}
		})
		stale(t, filepath.Join(dir, "at"))
		if err := os.Rename(filepath.Join(dir, "at"), others); err != nil {
			t.Fatal(err)
		}
		_ = p.Terminate(t.Context(), Grace{})
		if _, err := os.Lstat(own); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket of the process: %v", err)
		}
		if _, err := os.Lstat(others); err != nil {
			t.Errorf("another process's socket: %v", err)
		}
	})
}

// stale creates a socket on which no process accepts.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
}

func idOf(t *testing.T, path string) plugin.SocketID {
	t.Helper()
	info, err := sock.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.ID
}
