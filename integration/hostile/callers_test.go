//go:build linux

package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

// callerAttacks are those of a user who is no plugin. Each can connect to the control socket.
func callerAttacks() []attack {
	return []attack{
		{
			name: "hoards-connections", does: "opens 10,000 connections to the control socket, without a role, and sends nothing",
			happens: "16 stay open for 5 s, and the others are closed at once", bound: "16 connections per user without a role, 64 for all such users",
			play: hoards, user: hostileUser, roles: "{}",
			check: func(s *scene) {
				// The longer it takes, the more of them have been among the 16 in the meantime.
				s.await("the connections are closed", func() bool { return s.metric(refusedConns) >= hoarded*9/10 })
			},
		},
		{
			name: "drowns-the-audit", does: "calls 1,000 made-up plugins and 1,000 made-up methods, and then a method that exists; it may call plugins",
			happens: "the last call is in the audit log", bound: "256 made-up names per user and minute are recorded, separately from existing ones",
			play: drowns, user: hostileUser, roles: fmt.Sprintf(`{operate: {users: ["%d"]}}`, hostileUser),
			check: func(s *scene) {
				s.await("the call of what exists is in the audit", func() bool {
					for _, e := range s.events() {
						if e.Kind == "audit" && strings.Contains(e.Message, fmt.Sprint(hostileUser)) &&
							strings.Contains(e.Message, "Neighbour/found") && strings.Contains(e.Message, "grpc.health.v1.Health/Check") {
							return true
						}
					}
					return false
				})
			},
		},
		{
			name: "reads-no-answer", does: fmt.Sprintf("asks for all plugins and all events %d times each, and reads none of the answers; it may read", unread),
			happens: "the requests stay in progress, and others are served", bound: "12,288 requests and 32 MiB of answers per user",
			play: readsNothing, user: hostileUser, roles: fmt.Sprintf(`{read: {users: ["%d"]}}`, hostileUser), requests: 2*unread + 2*2*unread/perConn,
			check: func(s *scene) {
				s.await("the answers wait", func() bool { return s.usage().goroutines > 2*unread })
			},
		},
	}
}

const (
	hoarded      = 10_000
	refusedConns = `patchbay_connections_refused_total{reason="user",socket="control"}` // of which there is none before the first
)

// openToAll lets every user connect to the control socket.
func (s *scene) openToAll() {
	s.Helper()
	if err := os.Chmod(s.path("control.sock"), 0o666); err != nil {
		s.Fatal(err)
	}
}

func (a *attacker) control() string { return filepath.Join(filepath.Dir(a.dir), "control.sock") }

// hoards keeps what it is let keep.
func hoards(a *attacker) {
	for range hoarded {
		conn, err := net.Dial("unix", a.control())
		for errors.Is(err, syscall.EAGAIN) { // on a busy machine too many wait to be accepted
			<-time.After(10 * time.Millisecond)
			conn, err = net.Dial("unix", a.control())
		}
		must(err)
		go func() {
			_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}()
	}
}

func drowns(a *attacker) {
	ctx, c := context.Background(), client.New(a.control())
	call := func(plugin, method string) {
		conn, err := c.Conn("Neighbour", plugin)
		must(err)
		_ = conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{}) // fails, as what is made up does
		must(conn.Close())
	}
	for i := range 1000 {
		call(fmt.Sprint("made-up-", i), "/grpc.health.v1.Health/Check")
		call("found", fmt.Sprintf("/made.Up/Method%d", i))
	}
	call("found", "/grpc.health.v1.Health/Check")
}

// unread is how many answers of each kind readsNothing asks for, with that many requests on a connection.
const unread, perConn = 500, 100

// readsNothing makes requests on connections on which the daemon may not send a byte of an answer.
func readsNothing(a *attacker) {
	for range 2 * unread / perConn {
		conn, err := net.Dial("unix", a.control())
		must(err)
		_, err = io.WriteString(conn, http2.ClientPreface)
		must(err)
		p := newPeer(conn)
		must(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
		must(p.WriteSettingsAck())
		for i := range perConn {
			method := []string{"ListPlugins", "WatchEvents"}[i%2]
			p.stream = uint32(2*i + 1)
			p.headers(false, ":method", "POST", ":scheme", "http", ":authority", "patchbay", ":path", "/patchbay.v1.ControlService/"+method,
				"content-type", "application/grpc", "te", "trailers")
			must(p.WriteData(p.stream, true, make([]byte, 5))) // a message without fields
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }() // of what is no answer: acknowledgements, refusals
	}
	select {}
}

// TestSilentCrowd has thousands of sockets of one user behind which nobody says anything: others register all the same, and with the flag
// -measured hardly later than without them.
func TestSilentCrowd(t *testing.T) {
	const times, rounds = 3, 20
	// Less than least is no difference on a busy machine.
	sockets, least := 5_000, 250*time.Millisecond
	if programs.Raced {
		sockets, least = 3_000, raceFactor*least
	}
	if !root {
		t.Skip("it takes root to make sockets of another user")
	}
	s := newScene(t, &attack{trust: trusted})
	mostDescriptors := s.metric("process_max_fds")/8 + moreDescriptors // of which the user has three quarters
	newcomers := func() (median, slowest time.Duration) {              // on a busy machine the slowest says nothing
		var all []time.Duration
		for range rounds {
			all = append(all, s.newcomer())
		}
		slices.Sort(all)
		return all[rounds/2], all[rounds-1]
	}
	s.resetPeak()
	before := s.usage()
	alone, slowestAlone := newcomers()
	for i := range sockets {
		dir := filepath.Join(s.plugins, fmt.Sprint("s", i/maxSockets))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		made, path := s.path(fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint(i))
		l := listen(made)
		t.Cleanup(func() { _ = l.Close() })
		if err := errors.Join(os.Chown(made, hostileUser, hostileUser), os.Rename(made, path)); err != nil {
			t.Fatal(err)
		}
	}
	s.await("half of them were tried", func() bool {
		n := 0
		for _, p := range s.list().Plugins {
			if p.LastError != "" {
				n++
			}
		}
		return n >= sockets/2
	})
	among, slowestAmong := newcomers()
	after := s.usage()
	if *measured && among > max(times*alone, least) {
		t.Errorf("a plugin is registered after %v among silent ones, after %v without them", among, alone)
	}
	if after.descriptors > before.descriptors+mostDescriptors {
		t.Errorf("the daemon has %d descriptors open, %d before", after.descriptors, before.descriptors)
	}
	t.Logf("registered after %v (at most %v), among %d silent ones after %v (at most %v); "+
		"memory %d to %d KiB, descriptors %d to %d, goroutines %d to %d", alone, slowestAlone, sockets, among, slowestAmong,
		before.memory, after.memory, before.descriptors, after.descriptors, before.goroutines, after.goroutines)
}
