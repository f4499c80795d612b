//go:build unix

package daemon_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/internal/systemd"
)

// manager is a service manager that listens.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

// newManager returns a service manager, and what tells it something.
func newManager(t *testing.T, watchdog string) (*manager, *systemd.Notifier) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", watchdog)
	n := systemd.TakeNotifier()
	if os.Getenv("NOTIFY_SOCKET")+os.Getenv("WATCHDOG_USEC") != "" {
		t.Error("descendants would notify the manager too")
	}
	return &manager{t, conn}, n
}

// hears waits for a message that begins with an assignment.
func (m *manager) hears(assignment string) string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		m.t.Fatal(err)
	}
	var heard []string
	b := make([]byte, 4096)
	for {
		n, err := m.conn.Read(b)
		if err != nil {
			m.t.Fatalf("the daemon does not say %s: %v; it said %q", assignment, err, heard)
		}
		message := string(b[:n])
		if strings.HasPrefix(message, assignment) {
			return message
		}
		if message != "WATCHDOG=1" {
			heard = append(heard, message)
		}
	}
}

func TestServiceManager(t *testing.T) {
	m, notifier := newManager(t, "200000")
	options := configIn(t)
	options.Notifier = notifier
	loaded := options.Loaded
	options.Load = func() (*config.Loaded, error) { return &loaded, nil }
	stop := start(t, options)
	m.hears("READY=1\nSTATUS=0 plugins")
	m.hears("WATCHDOG=1")
	m.hears("WATCHDOG=1")
	if _, err := dial(t, options).Reload(within(t)); err != nil {
		t.Fatal(err)
	}
	m.hears("RELOADING=1\nMONOTONIC_USEC=")
	m.hears("READY=1")
	if err := stop(); err != nil {
		t.Error(err)
	}
	m.hears("STOPPING=1")
}

func TestPassedSockets(t *testing.T) {
	options := configIn(t)
	control, err := net.ListenUnix("unix", &net.UnixAddr{Name: options.ControlSocket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	control.SetUnlinkOnClose(false)
	pages, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	options.ControlListener, options.HTTPListener = control, pages
	stop := start(t, options)
	if _, err := dial(t, options).List(within(t)); err != nil {
		t.Error(err)
	}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+pages.Addr().String()+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(options.ControlSocket); err != nil {
		t.Errorf("the manager's socket: %v", err)
	}
}

func TestPassedSocketsThatCannotBeUsed(t *testing.T) {
	public, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer public.Close()
	options := configIn(t)
	options.HTTPListener = public
	if _, err := daemon.New(options); err == nil || !strings.Contains(err.Error(), "must listen on a loopback address") {
		t.Errorf("HTTP for everybody: %v", err)
	}
	options = configIn(t)
	options.ControlListener = public
	if _, err := daemon.New(options); err == nil || !strings.Contains(err.Error(), "use ListenStream= with a path") {
		t.Errorf("a control socket of TCP: %v", err)
	}
}
