package dynamicplugins_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// TestSharedConn: a client that is held follows the plugin over its instances; a call ends on the instance on which it began.
func TestSharedConn(t *testing.T) {
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
	old, newer := serve(t, "old"), serve(t, "newer \x7f%2f?#")
	register(t, r, old.info("1"))
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	other, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	expectWho(t, client, "old")
	expectWho(t, other, "old")
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	check(t, err)
	_, err = stream.Recv()
	check(t, err)

	register(t, r, newer.info("2"))
	expectWho(t, client, "newer \x7f%2f?#")
	old.awaitOpen(t, 1) // the stream is under way
	close(old.hold)
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	old.awaitOpen(t, 0)
	if old.accepted != 1 || newer.accepted != 1 {
		t.Errorf("%d and %d connections were made", old.accepted, newer.accepted)
	}

	check(t, r.DeregisterPlugin("t", "n", "2"))
	expectWho(t, client, "old")
	newer.awaitOpen(t, 0)
	check(t, r.DeregisterPlugin("t", "n", "1"))
	old.awaitOpen(t, 0)
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if !errors.Is(err, dynamicplugins.ErrNotFound) || status.Code(err) != codes.Unavailable {
		t.Errorf("without an instance: %v", err)
	}
	if _, err = client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{}); !errors.Is(err, dynamicplugins.ErrNotFound) {
		t.Errorf("without an instance: %v", err)
	}
}

// TestDrainEnds: however a call on a superseded instance ends, its connection is closed then.
func TestDrainEnds(t *testing.T) {
	for name, end := range map[string]func(cancel func(), stream grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse], s *server){
		"Cancelled": func(cancel func(), _ grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse], _ *server) {
			cancel()
		},
		"Read": func(_ func(), stream grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse], s *server) {
			close(s.hold)
			readToEnd(stream)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
			s := serve(t, "s")
			register(t, r, s.info("1"))
			client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
			check(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
			check(t, err)
			register(t, r, newInfo("t", "n", "2"))
			s.awaitOpen(t, 1)
			end(cancel, stream, s)
			s.awaitOpen(t, 0)
		})
	}
}

// TestRevived: an instance that is current again while calls on it are still under way keeps its connection.
func TestRevived(t *testing.T) {
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
	s := serve(t, "s")
	register(t, r, s.info("1"))
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	check(t, err)
	register(t, r, newInfo("t", "n", "2"))
	check(t, r.DeregisterPlugin("t", "n", "2"))
	close(s.hold)
	readToEnd(stream)
	expectWho(t, client, "s")
	s.awaitOpen(t, 1)
	if s.accepted != 1 {
		t.Errorf("%d connections were made", s.accepted)
	}
}

// TestUpdatedConn: an instance that moves to another socket is reached there.
func TestUpdatedConn(t *testing.T) {
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
	here, there := serve(t, "here"), serve(t, "there")
	register(t, r, here.info("1"))
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	expectWho(t, client, "here")
	register(t, r, version(here.info("1"), "2")) // the same socket
	expectWho(t, client, "here")
	register(t, r, there.info("1"))
	expectWho(t, client, "there")
	here.awaitOpen(t, 0)
	if here.accepted != 1 {
		t.Errorf("%d connections were made", here.accepted)
	}
}

func TestUnreachableConn(t *testing.T) {
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
	s := serve(t, "s")
	register(t, r, s.info("1"))
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	expectWho(t, client, "s")
	check(t, r.MarkUnreachable("t", "n", "1", errors.New("dead")))
	s.awaitOpen(t, 0)
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	var unreachable *dynamicplugins.UnreachableError
	if !errors.As(err, &unreachable) || status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	register(t, r, s.info("1"))
	expectWho(t, client, "s")

	// A call that hangs on the dead instance does not hold the one that lives again to its connection.
	hanging, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	check(t, err)
	_, err = hanging.Recv()
	check(t, err)
	check(t, r.MarkUnreachable("t", "n", "1", errors.New("dead")))
	register(t, r, s.info("1"))
	expectWho(t, client, "s")
	s.awaitOpen(t, 2)
}

// TestRestoredConn: shared connections wait for a restored instance to be confirmed, or say why not.
func TestRestoredConn(t *testing.T) {
	store := &changing{}
	s := serve(t, "s")
	before := open(t, store, nil)
	register(t, before, s.info("1"), newInfo("t", "n", "2"))
	before.Shutdown()

	dial := make(chan string, 1)
	r := open(t, store, map[string]dynamicplugins.PluginDispenser{"plain": dispenseInfo}, dynamicplugins.WithConnDispenser("t", health),
		dynamicplugins.WithConfirmTimeout(time.Millisecond),
		dynamicplugins.WithConnections(dialing(func(ctx context.Context, path string) (net.Conn, error) {
			dial <- path
			return new(net.Dialer).DialContext(ctx, "unix", path)
		})))
	_, dispenseErr := r.DispensePlugin("t", "n")
	_, connErr := r.Conn(t.Context(), "t", "n")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, endedErr := r.Conn(ended, "t", "n")
	const want = "plugin n for type t was restored from the saved state and is not confirmed to be alive yet"
	for _, test := range []struct {
		err  error
		code codes.Code
		want string
	}{
		{dispenseErr, codes.Unavailable, want},
		{connErr, codes.Unavailable, want},
		{endedErr, codes.Canceled, want + ": context canceled"},
	} {
		if !errors.Is(test.err, dynamicplugins.ErrNotConfirmed) || status.Code(test.err) != test.code || test.err.Error() != test.want {
			t.Errorf("got %v, want %s", test.err, test.want)
		}
	}
	check(t, r.ConfirmPlugin("t", "n", "1"))
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	expectWho(t, client, "s")
	if got := <-dial; got != s.path {
		t.Errorf("dialled %s", got)
	}
}

// TestConnWaitsForConfirmation: whatever ends the doubt about a restored plugin ends the waiting.
func TestConnWaitsForConfirmation(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(r *dynamicplugins.Store) error
		want error
	}{
		"Confirmed":  {func(r *dynamicplugins.Store) error { return r.ConfirmPlugin("t", "n", "1") }, nil},
		"Registered": {func(r *dynamicplugins.Store) error { return r.RegisterPlugin(newInfo("t", "n", "1")) }, nil},
		"Newer":      {func(r *dynamicplugins.Store) error { return r.RegisterPlugin(newInfo("t", "n", "2")) }, nil},
		"Gone":       {func(r *dynamicplugins.Store) error { return r.DeregisterPlugin("t", "n", "1") }, dynamicplugins.ErrNotFound},
		"Dead": {
			func(r *dynamicplugins.Store) error { return r.MarkUnreachable("t", "n", "1", nil) }, dynamicplugins.ErrUnreachable,
		},
		"Shutdown": {func(r *dynamicplugins.Store) error { r.Shutdown(); return nil }, dynamicplugins.ErrShutdown},
	} {
		t.Run(name, func(t *testing.T) {
			store := &changing{}
			before := open(t, store, nil)
			register(t, before, newInfo("t", "n", "1"))
			before.Shutdown()
			r := open(t, store, nil, dynamicplugins.WithConfirmTimeout(time.Minute))
			got := make(chan error)
			go func() {
				_, err := r.Conn(t.Context(), "t", "n")
				got <- err
			}()
			check(t, test.end(r))
			if err := <-got; !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// TestConfirmationsOnASlowMachine: a restored plugin is waited for as long as others are confirmed, and for the timeout after the last one.
func TestConfirmationsOnASlowMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &changing{}
		before := open(t, store, nil)
		for _, name := range []string{"a", "b", "c", "last"} {
			register(t, before, newInfo("t", name, name))
		}
		before.Shutdown()
		r := open(t, store, nil)
		defer r.Shutdown()
		began := time.Now()
		for i, name := range []string{"a", "b", "c"} {
			time.AfterFunc(time.Duration(i+1)*1500*time.Millisecond, func() { check(t, r.ConfirmPlugin("t", name, name)) })
		}
		_, err := r.Conn(t.Context(), "t", "last")
		if took := time.Since(began); !errors.Is(err, dynamicplugins.ErrNotConfirmed) || took < 6500*time.Millisecond || took > 8500*time.Millisecond {
			t.Errorf("after %v: %v", took, err)
		}
		time.AfterFunc(time.Second, func() { check(t, r.ConfirmPlugin("t", "last", "last")) })
		_, err = r.Conn(t.Context(), "t", "last")
		check(t, err)
	})
}

// TestDispensePluginEnds: it has no context, so that it ends although others are confirmed.
func TestDispensePluginEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &changing{}
		before := open(t, store, nil)
		register(t, before, newInfo("t", "last", "last"))
		for i := range 60 {
			register(t, before, newInfo("t", fmt.Sprint(i), "1"))
		}
		before.Shutdown()
		r := open(t, store, nil, dynamicplugins.WithConnDispenser("t", health))
		defer r.Shutdown()
		for i := range 60 {
			time.AfterFunc(time.Duration(i)*time.Second, func() { check(t, r.ConfirmPlugin("t", fmt.Sprint(i), "1")) })
		}
		began := time.Now()
		_, err := r.DispensePlugin("t", "last")
		if took := time.Since(began); !errors.Is(err, dynamicplugins.ErrNotConfirmed) || took != 30*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		time.Sleep(time.Minute)
	})
}

// TestPlainDispenserGetsRestored: the documented dispensers get restored instances at once.
func TestPlainDispenserGetsRestored(t *testing.T) {
	store := &memory{}
	before := newStore(store, nil)
	register(t, before, newInfo("t", "n", "1"), newInfo("t", "n", "2"))
	before.Shutdown()
	r := newStore(store, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo})
	defer r.Shutdown()
	info, err := dynamicplugins.Dispense[*dynamicplugins.PluginInfo](r, "t", "n")
	if err != nil || info.AllocID != "2" {
		t.Errorf("dispensed %v, %v", info, err)
	}
	if info, err := r.WaitForPlugin(t.Context(), "t", "n"); err != nil || info.AllocID != "2" {
		t.Errorf("waited for %v, %v", info, err)
	}
}

// TestShutdownEndsCalls: no call and no connection outlives Shutdown.
func TestShutdownEndsCalls(t *testing.T) {
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
	s := serve(t, "s")
	register(t, r, s.info("1"))
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	draining, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	check(t, err)
	register(t, r, s.info("2"))
	current, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	check(t, err)
	for _, stream := range []grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse]{draining, current} {
		_, err := stream.Recv()
		check(t, err)
	}
	unary := make(chan error, 1)
	go func() {
		_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "held"})
		unary <- err
	}()
	<-s.held
	r.Shutdown()
	const want = "the call was lost when the connection to plugin t/n was closed: the plugin was replaced or the host is shutting down"
	if s := status.Convert(<-unary); s.Code() != codes.Unavailable || s.Message() != want {
		t.Errorf("the unary call ended with %v, want %s", s.Err(), want)
	}
	for _, stream := range []grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse]{draining, current} {
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable { // the caller has canceled nothing
			t.Errorf("the call ended with %v", err)
		}
	}
	s.awaitOpen(t, 0)
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if !errors.Is(err, dynamicplugins.ErrShutdown) {
		t.Errorf("after Shutdown: %v", err)
	}
}

// TestCallsDuringChanges: no call fails because instances come and go, as long as one is there, and no connection is left over.
func TestCallsDuringChanges(t *testing.T) {
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
	servers := []*server{serve(t, "a"), serve(t, "b"), serve(t, "c")}
	register(t, r, servers[0].info("0"))
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					who(t, client)
				}
			}
		})
	}
	ids := []string{"0", "1", "2"}
	for i := range 200 {
		next := (i + 1) % 3
		register(t, r, servers[next].info(ids[next]))
		check(t, r.DeregisterPlugin("t", "n", ids[i%3]))
	}
	close(stop)
	callers.Wait()
	check(t, r.DeregisterPlugin("t", "n", ids[200%3]))
	for _, s := range servers {
		s.awaitOpen(t, 0)
	}
}

// A call that began on an instance which goes before the call is sent is made on the one that took its place.
func TestCallThatMissesItsInstance(t *testing.T) {
	dialling, dial := make(chan struct{}), make(chan struct{})
	gone := filepath.Join(t.TempDir(), "gone")
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health),
		dynamicplugins.WithConnections(dialing(func(ctx context.Context, path string) (net.Conn, error) {
			if path == gone {
				dialling <- struct{}{}
				<-dial
			}
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		})))
	for name, call := range map[string]func(healthClient) error{
		"unary": func(c healthClient) error {
			_, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
			return err
		},
		"stream": func(c healthClient) error {
			stream, err := c.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := &server{path: gone}
			register(t, r, old.info("old"))
			client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
			check(t, err)
			called := make(chan error, 1)
			go func() { called <- call(client) }()
			<-dialling
			now := serve(t, "now")
			close(now.hold)
			register(t, r, now.info("now"))
			check(t, r.DeregisterPlugin("t", "n", "old"))
			dial <- struct{}{}
			if err := <-called; err != nil && status.Code(err) != codes.NotFound { // which is how the server answers
				t.Errorf("the call failed: %v", err)
			}
			check(t, r.DeregisterPlugin("t", "n", "now"))
		})
	}
}

// readToEnd reads a stream until it ends, however it ends.
func readToEnd(stream grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse]) {
	for {
		if _, err := stream.Recv(); err != nil {
			return
		}
	}
}

// dialing are connections that only dial as they like.
type dialing func(ctx context.Context, path string) (net.Conn, error)

func (d dialing) Dial(ctx context.Context, path string) (net.Conn, error) { return d(ctx, path) }

func (dialing) DialOptions(string) []grpc.DialOption { return nil }

func (dialing) Interceptor(string) grpc.StreamClientInterceptor { return nil }
