package peerauth

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// TestConnectionsOfTheHost: what the host has a connection of its own to is nobody else's endpoint, by whatever path he announces it.
func TestConnectionsOfTheHost(t *testing.T) {
	judge, err := trustjudge.New(trust.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	own, other := net.Pipe()
	defer own.Close()
	defer other.Close()
	host := plugin.Account{UID: uint32(os.Geteuid()), Known: true}
	for name, test := range map[string]struct {
		judge   *trustjudge.Judge
		account plugin.Account
		refused bool
	}{
		"the host's plugin":      {judge, host, false},
		"somebody's":             {judge, plugin.Account{UID: 60001, Known: true}, true},
		"of whom nobody knows":   {judge, plugin.Account{}, false},
		"somebody's, not judged": {nil, plugin.Account{UID: 60001, Known: true}, false},
	} {
		err := Check(test.judge, &plugin.Instance{Type: "T", Account: test.account}, "/go-plugin/127.0.0.1:1", own)
		refusal, ok := errors.AsType[*trust.Refusal](err)
		if ok != test.refused || ok && refusal.Reason != trust.Endpoint {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWhoListens: a connection is made if the user listens who answers for the plugin, and to nobody else.
func TestWhoListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	own := uint32(os.Geteuid())
	other := own + 60001
	probe, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	if _, err := sock.PeerOf(probe); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the system does not tell who listens")
	}
	judge, err := trustjudge.New(trust.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	overTLS := func(uid uint32) error {
		return Check(judge, &plugin.Instance{Type: "T", Account: plugin.Account{UID: uid, Known: true}}, path, tls.Client(probe, nil))
	}
	for name, test := range map[string]struct {
		connect func(uid uint32) error
		refused string
	}{
		"ByUser": {func(uid uint32) error { return closed(ByUser(t.Context(), path, uid)) }, "listens on " + path},
		"Dial": {func(uid uint32) error {
			return closed(Dial(t.Context(), judge, &plugin.Instance{Type: "T", Account: plugin.Account{UID: uid, Known: true}}, path))
		}, "who may have no right to call there"},
		"Check of TLS": {overTLS, "who may have no right to call there"},
	} {
		if err := test.connect(own); err != nil {
			t.Errorf("%s: of the user who listens: %v", name, err)
		}
		if err := test.connect(other); err == nil || !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%s: of another user: %v, want %q", name, err, test.refused)
		}
	}
}

func closed(conn net.Conn, err error) error {
	if err != nil {
		return err
	}
	return conn.Close()
}
