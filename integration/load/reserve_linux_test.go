package load

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// TestReserve: users have far more plugins than a daemon has descriptors for, some of which say nothing. Root's are registered meanwhile as if there were no others, and
// root and probes are answered.
func TestReserve(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for sockets of other users")
	}
	const limit, each = 256, 200
	users, silent := []int{60001, 60002}, 60003
	d := newDaemon(t, limit, fmt.Sprintf(`trust: {sticky: true, owners: {users: ["%d", "%d", "%d"]}}`, users[0], users[1], silent))
	hidden := filepath.Join(d.Dir, "made")
	if err := os.Mkdir(hidden, 0o700); err != nil {
		t.Fatal(err)
	}
	var hostile []*rig.Plugin
	defer func() { stop(t, hostile) }()
	for i := range each * len(users) {
		hostile = append(hostile, serveFor(t, users[i%len(users)], hidden, d.Plugins(), fmt.Sprint("h", i)))
	}
	for i := range each {
		listenFor(t, silent, hidden, d.Plugins(), fmt.Sprint("s", i))
	}
	const allowed = limit / 8
	eventually(t, "as many are registered as may be", func() string {
		if n := registeredNow(t, d); n != allowed {
			return fmt.Sprintf("%d are, of %d", n, allowed)
		}
		return ""
	})
	before := use(t, d)
	var roots []*rig.Plugin
	defer func() { stop(t, roots) }()
	slowest := time.Duration(0)
	for i := range 20 {
		p := serve(t, d.Plugins(), fmt.Sprint("root", i))
		roots = append(roots, p)
		slowest = max(slowest, told(t, p).Sub(p.Born))
	}
	if slowest > 5*time.Second {
		t.Errorf("a plugin of root's was registered after %v", slowest)
	}
	for _, page := range []string{"/livez", "/readyz"} {
		if _, err := d.Page(t.Context(), page); err != nil {
			t.Error(err)
		}
	}
	if err := events(t.Context(), d.Client); err != nil {
		t.Error(err)
	}
	t.Logf("%d plugins of others, of which %d are registered: %v; 20 of root's beside, the slowest after %v: %v",
		len(hostile), allowed, before, slowest, use(t, d))
}

// serveFor starts a plugin whose socket is a user's, from the first instant at which the daemon can see it.
func serveFor(t *testing.T, uid int, hidden, dir, name string) *rig.Plugin {
	t.Helper()
	p := serve(t, hidden, name)
	p.Path = give(t, uid, p.Path, dir)
	return p
}

// listenFor has a socket of a user appear behind which nobody says anything.
func listenFor(t *testing.T, uid int, hidden, dir, name string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(hidden, name), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	give(t, uid, filepath.Join(hidden, name), dir)
	t.Cleanup(func() { l.Close() })
}

// give makes a socket a user's and brings it into a directory.
func give(t *testing.T, uid int, path, dir string) string {
	t.Helper()
	there := filepath.Join(dir, filepath.Base(path))
	if err := os.Chown(path, uid, uid); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, there); err != nil {
		t.Fatal(err)
	}
	return there
}

func registeredNow(t *testing.T, d *rig.Daemon) (n int) {
	t.Helper()
	for _, p := range rig.List(t, d.Client).Plugins {
		if p.State == "registered" {
			n++
		}
		if strings.Contains(p.LastError, "too many open files") {
			t.Fatalf("a descriptor is lacking for %s: %s", p.SocketPath, p.LastError)
		}
	}
	return n
}

// events reads what has happened, on a connection of its own.
func events(ctx context.Context, of *client.Client) error {
	for _, err := range of.Events(ctx, &patchbayv1.WatchEventsRequest{}) {
		if err != nil {
			return err
		}
	}
	return nil
}
