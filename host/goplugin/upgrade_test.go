package goplugin_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// upgrades is how often the plugin is replaced under load.
var upgrades = flag.Int("upgrades", 2, "how often TestUpgradesUnderLoad replaces the plugin")

// load is what callers do all the time, until stop is closed. What fails that must not is kept.
type load struct {
	conn     grpc.ClientConnInterface
	stop     chan struct{}
	callers  sync.WaitGroup
	calls    atomic.Int64 // that succeeded
	streams  atomic.Int64 // that ended as they were meant to
	standing atomic.Int64 // streams that have brought something and go on
	cut      atomic.Int64 // endless streams, by the end of the plugin

	mu     sync.Mutex
	failed []error
}

// pause is how long a caller waits between two calls: what the tests need is that calls are in progress, not that the machine is busy.
const pause = 800 * time.Millisecond

// repeat does something again and again, in a goroutine of its own.
func (l *load) repeat(what func() error) {
	l.callers.Go(func() {
		for {
			select {
			case <-l.stop:
				return
			case <-time.After(pause):
			}
			if err := what(); err != nil {
				l.mu.Lock()
				l.failed = append(l.failed, err)
				l.mu.Unlock()
			}
		}
	})
}

func (l *load) call() error {
	_, err := v1beta1.NewExampleClient(l.conn).GetExampleInfo(context.Background(), &v1beta1.ExampleRequest{Request: "slow"})
	if err == nil {
		l.calls.Add(1)
	}
	return err
}

// tick reads a stream of n messages, or an endless one, to its end.
func (l *load) tick(n int32) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := l.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/test.Ticker/Tick")
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(wrapperspb.Int32(n)), stream.CloseSend()); err != nil {
		return err
	}
	for brought := false; ; {
		select {
		case <-l.stop:
			return nil
		default:
		}
		if err := stream.RecvMsg(&wrapperspb.Int32Value{}); err != nil {
			return err
		}
		if !brought {
			brought = true
			l.standing.Add(1)
			defer l.standing.Add(-1)
		}
	}
}

// TestUpgradesUnderLoad replaces a plugin under 64 callers and 8 streams, of which 4 end by themselves within the time that the old process
// has for them, and 4 never: no call fails, and the endless streams end with Unavailable and with nothing else.
func TestUpgradesUnderLoad(t *testing.T) {
	if testing.Short() {
		*upgrades = 1
	}
	for name, multiplexed := range map[string]bool{"plain": false, "multiplexed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upgradeUnderLoad(t, multiplexed, plugin.UpgradeSideBySide, directly)
		})
		t.Run(name+" by handover", func(t *testing.T) {
			t.Parallel()
			upgradeUnderLoad(t, multiplexed, plugin.UpgradeHandover, directly)
		})
		t.Run(name+" through a stable socket", func(t *testing.T) {
			t.Parallel()
			upgradeUnderLoad(t, multiplexed, plugin.UpgradeSideBySide, func(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return stable(t, conn) })
		})
	}
}

func directly(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return conn }

// stable returns a connection to what forwards calls to conn as a stable socket does.
func stable(t *testing.T, conn grpc.ClientConnInterface) grpc.ClientConnInterface {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	end, stop := context.WithCancel(context.Background())
	director := proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) { return conn, nil })
	server := proxy.NewServer(end, director.Forward, proxy.ServerConfig{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	c, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		server.Drain()
		if err := errors.Join(c.Close(), <-served, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return c
}

func upgradeUnderLoad(
	t *testing.T, multiplexed bool, upgrade plugin.Upgrade, through func(grpc.ClientConnInterface) grpc.ClientConnInterface,
) {
	m := newMachine(t)
	unit := m.unit("serve", func(p *goplugin.Protocol) { p.Config.GRPCBrokerMultiplex = multiplexed })
	unit.StopTimeout, unit.StartTimeout, unit.Upgrade = 4*time.Second, patience, upgrade
	m.set(unit)
	m.running()
	conn, err := m.Registry().Conn(t.Context(), ptype, "example")
	if err != nil {
		t.Fatal(err)
	}
	l := &load{conn: through(conn), stop: make(chan struct{})}
	for range 64 {
		l.repeat(l.call)
	}
	for range 4 {
		l.repeat(func() error {
			err := l.tick(20)
			if errors.Is(err, io.EOF) {
				l.streams.Add(1)
				return nil
			}
			return err
		})
		l.repeat(func() error {
			err := l.tick(0)
			if status.Code(err) == codes.Unavailable {
				l.cut.Add(1)
				return nil
			}
			return err
		})
	}
	for range *upgrades {
		called := l.calls.Load()
		m.until("calls and streams of both kinds are in progress", func() bool { return l.calls.Load() > called && l.standing.Load() > 4 })
		before := m.status().PID
		if err := m.Launcher().Restart(t.Context(), "unit"); err != nil {
			t.Error(err)
		}
		m.until("that the old one is gone", func() bool {
			s := m.status()
			// How soon the new one answers a question for its health depends on the machine, with these callers.
			runs := s.State == plugin.StateRunning || s.State == plugin.StateUnresponsive
			return runs && s.PID != before && len(m.Registry().Instances(ptype, "example")) == 1
		})
	}
	// The old process has some seconds for the streams, also after the new one runs.
	m.until("a stream came to its end, and an endless one was cut", func() bool { return l.streams.Load() > 0 && l.cut.Load() > 0 })
	close(l.stop)
	l.callers.Wait()
	t.Logf("%d calls, %d streams to their end, %d cut, over %d upgrades", l.calls.Load(), l.streams.Load(), l.cut.Load(), *upgrades)
	if len(l.failed) > 0 {
		t.Errorf("%d failed: %v", len(l.failed), errors.Join(l.failed[:min(5, len(l.failed))]...))
	}
}

// TestOnDemand: a plugin is started once to say its version, again by the first call, and not by who only looks. The services by which its
// host ends it are nobody's.
func TestOnDemand(t *testing.T) {
	m := newMachine(t)
	unit := m.unit("serve", nil)
	unit.OnDemand, unit.Idle = true, 50*time.Millisecond
	m.set(unit)
	idle := func() {
		t.Helper()
		m.until("idleness", func() bool {
			return m.status().State == plugin.StateIdle && len(m.Registry().Instances(ptype, "example")) == 1
		})
	}
	idle()
	conn, err := m.Registry().Conn(t.Context(), ptype, "example")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := v1beta1.NewExampleClient(conn).GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{}); err != nil {
			t.Fatal(err)
		}
		err := conn.Invoke(t.Context(), "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("it can be shut down: %v", err)
		}
		idle()
	}
}

// TestStopLetsCallsEnd: a plugin that is stopped, and has no successor, ends what is under way and takes nothing more.
func TestStopLetsCallsEnd(t *testing.T) {
	m := newMachine(t)
	m.set(m.unit("serve", nil))
	m.running()
	conn, err := m.Registry().Conn(t.Context(), ptype, "example")
	if err != nil {
		t.Fatal(err)
	}
	const n = 50
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/test.Ticker/Tick")
	if err != nil {
		t.Fatal(err)
	}
	var got wrapperspb.Int32Value
	if err := errors.Join(stream.SendMsg(wrapperspb.Int32(n)), stream.CloseSend(), stream.RecvMsg(&got)); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- m.Launcher().Stop("unit") }()
	for got.GetValue() < n-1 {
		if err := stream.RecvMsg(&got); err != nil {
			t.Fatalf("after %d messages: %v", got.GetValue()+1, err)
		}
	}
	if err := stream.RecvMsg(&got); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := v1beta1.NewExampleClient(conn).GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{}); err == nil {
		t.Error("it answers after Stop")
	}
}
