package dirwatch

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var remadeRounds = flag.Int("dirwatch.remade", 1, "how often TestRootRemade removes and makes 25 directories in four ways each")

// TestRootRemade removes roots in which plugins listen, as they go on to do, and makes them anew: a listener keeps its directory alive, so no
// event tells that it was removed. What is in the new one is found within 5 s all the same.
func TestRootRemade(t *testing.T) {
	aside := func(path string) error { return os.Rename(path, path+".old") }
	for way, remove := range map[string]func(root string) error{
		"removed": os.RemoveAll, "renamed": aside,
		"parent-removed": func(root string) error { return os.RemoveAll(filepath.Dir(root)) },
		"parent-renamed": func(root string) error { return aside(filepath.Dir(root)) },
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			for range *remadeRounds {
				remade(t, remove)
			}
		})
	}
}

// remade has 25 roots be removed and made again, when the watcher has come to rest.
func remade(t *testing.T, remove func(root string) error) {
	t.Helper()
	const n, most = 25, 5 * time.Second
	roots := make([]string, n)
	for i := range roots {
		roots[i] = fmt.Sprintf("%d/r", i)
	}
	r := newRig(t, roots...)
	at := func(i int, name string) string { return filepath.Join(r.dir, roots[i], name) }
	old := time.Now().Add(-time.Hour)
	for i := range roots {
		if err := os.MkdirAll(at(i, ""), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", at(i, "a"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := os.Chtimes(at(i, ""), old, old); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	defer r.stop()
	began := time.Now()
	for i := range roots {
		if err := errors.Join(remove(at(i, "")), os.MkdirAll(at(i, ""), 0o755), makeSocket(at(i, "b"))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range roots {
		r.await(at(i, "b"), func() bool { _, found := r.state[at(i, "b")]; return found })
	}
	if took := time.Since(began); took > most {
		t.Errorf("it took %v", took)
	}
}
