package client_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// service is a control service whose answers a test sets. The real one is tested in internal/daemon.
type service struct {
	patchbayv1connect.UnimplementedControlServiceHandler
	plugins []*patchbayv1.Plugin
	watch   func(context.Context, *patchbayv1.WatchEventsRequest, func(*patchbayv1.Event) error) error
	err     error
}

func (s *service) StreamPlugins(
	_ context.Context, _ *patchbayv1.StreamPluginsRequest, stream *connect.ServerStream[patchbayv1.StreamPluginsResponse],
) error {
	part := &patchbayv1.StreamPluginsResponse{Conditions: []*patchbayv1.Condition{{Name: "discovery", Status: "ok"}}}
	for _, p := range s.plugins {
		part.Plugins = append(part.Plugins, p)
		if err := stream.Send(part); err != nil {
			return err
		}
		part = &patchbayv1.StreamPluginsResponse{}
	}
	return errors.Join(stream.Send(part), s.err)
}

func (s *service) GetPlugin(context.Context, *patchbayv1.GetPluginRequest) (*patchbayv1.GetPluginResponse, error) {
	if len(s.plugins) == 0 {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("not known"))
	}
	return &patchbayv1.GetPluginResponse{Plugins: s.plugins}, nil
}

func (s *service) WaitForPlugin(ctx context.Context, _ *patchbayv1.WaitForPluginRequest) (*patchbayv1.WaitForPluginResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *service) WatchEvents(
	ctx context.Context, request *patchbayv1.WatchEventsRequest,
	stream *connect.ServerStream[patchbayv1.WatchEventsResponse],
) error {
	return s.watch(ctx, request, func(e *patchbayv1.Event) error {
		return stream.Send(&patchbayv1.WatchEventsResponse{Event: e})
	})
}

// serve serves s and returns a client of it and a function that ends the service without any notice.
func serve(t *testing.T, s *service) (*client.Client, func()) {
	t.Helper()
	path := socketPath(t)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(patchbayv1connect.NewControlServiceHandler(s))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	kill := func() {
		_ = server.Close()
	}
	t.Cleanup(func() {
		kill()
		<-served
	})
	return connectTo(t, path), kill
}

func connectTo(t *testing.T, path string) *client.Client {
	t.Helper()
	c := client.New(path)
	t.Cleanup(c.Close)
	return c
}

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "control.sock")
}

func TestList(t *testing.T) {
	plugins := []*patchbayv1.Plugin{
		{Type: "CSIPlugin", Name: "a/b", Versions: []string{"v1", "v2"}, State: "registered", RegisteredAt: timestamppb.Now()},
		{SocketPath: "/t", State: "connecting"},
	}
	c, _ := serve(t, &service{plugins: plugins})
	got, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := &patchbayv1.ListPluginsResponse{
		Plugins: plugins, Conditions: []*patchbayv1.Condition{{Name: "discovery", Status: "ok"}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestErrors(t *testing.T) {
	absent := connectTo(t, socketPath(t))
	stale := socketPath(t)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	refusing, _ := serve(t, &service{err: connect.NewError(connect.CodePermissionDenied, errors.New("user 7 may not"))})
	stopping, _ := serve(t, &service{err: connect.NewError(connect.CodeUnavailable, errors.New("the daemon is stopping"))})
	cancelling, _ := serve(t, &service{err: connect.NewError(connect.CodeCanceled, context.Canceled)})
	nowhere := connectTo(t, "")
	failing, _ := serve(t, &service{err: connect.NewError(connect.CodeInternal, errors.New("broken"))})
	empty, _ := serve(t, &service{})
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()

	list := func(ctx context.Context, c *client.Client) error {
		_, err := c.List(ctx)
		return err
	}
	_, notKnown := empty.Get(t.Context(), "T", "n")
	_, unknownGoal := empty.Wait(t.Context(), "T", "n", "ready")
	for name, test := range map[string]struct {
		err, want error
		text      string
	}{
		"no socket":    {list(t.Context(), absent), client.ErrNotRunning, "cannot list the plugins: no daemon is running at control socket /"},
		"stale":        {list(t.Context(), connectTo(t, stale)), client.ErrNotRunning, "no daemon is running at control socket " + stale},
		"nowhere":      {list(t.Context(), nowhere), client.ErrNotRunning, "no daemon is running: the path of the control socket is empty"},
		"refused":      {list(t.Context(), refusing), fs.ErrPermission, "user 7 may not"},
		"stopping":     {list(t.Context(), stopping), client.ErrNotRunning, "the daemon is stopping"},
		"cancelling":   {list(t.Context(), cancelling), client.ErrNotRunning, " any more: context canceled"},
		"failing":      {list(t.Context(), failing), nil, "cannot list the plugins: broken"},
		"interrupted":  {list(interrupted, empty), context.Canceled, "cannot list the plugins: context canceled"},
		"late":         {list(late, empty), context.DeadlineExceeded, "does not answer in time"},
		"not known":    {notKnown, client.ErrNotFound, "cannot get plugin T/n: not known"},
		"unknown goal": {unknownGoal, nil, `unknown goal "ready"`},
	} {
		t.Run(name, func(t *testing.T) {
			if test.err == nil || !strings.Contains(test.err.Error(), test.text) || strings.Contains(test.err.Error(), "\n") {
				t.Errorf("got %q, want one line with %q", test.err, test.text)
			}
			if test.want != nil && !errors.Is(test.err, test.want) {
				t.Errorf("%q is not %q", test.err, test.want)
			}
		})
	}
}

func TestWaitTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		goal    client.Goal
		plugins []*patchbayv1.Plugin
		want    string // the error; empty if the goal turns out to be reached
	}{
		"unknown": {client.GoalRegistered, nil, "plugin T/n was not registered in time: not known"},
		"failing": {
			client.GoalRegistered, []*patchbayv1.Plugin{{State: "backoff", LastError: "refused"}, {State: "refused"}},
			"plugin T/n was not registered in time: it is in state backoff, last error: refused",
		},
		"just in time": {client.GoalRegistered, []*patchbayv1.Plugin{{State: "connecting"}, {State: "registered"}}, ""},
		"still there": {
			client.GoalDeregistered, []*patchbayv1.Plugin{{State: "registered", Instance: "i"}},
			"plugin T/n was not deregistered in time: it is in state registered",
		},
		"gone":         {client.GoalDeregistered, nil, ""},
		"deregistered": {client.GoalDeregistered, []*patchbayv1.Plugin{{State: "backoff"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := serve(t, &service{plugins: test.plugins})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := c.Wait(ctx, "T", "n", test.goal)
			if test.want == "" {
				if err != nil {
					t.Errorf("got %v, want nil", err)
				}
				return
			}
			if _, ok := errors.AsType[*client.TimeoutError](err); !ok || !errors.Is(err, context.DeadlineExceeded) || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

// TestWaitMute checks that Wait ends with its context if the daemon accepts connections and answers nothing, and calls nothing after it.
func TestWaitMute(t *testing.T) {
	listener, err := net.Listen("unix", socketPath(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var late atomic.Int32
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if ctx.Err() != nil {
			late.Add(1)
		}
		_, _ = io.Copy(io.Discard, r.Body) // so that the server notices the end of the connection
		<-r.Context().Done()
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	_, err = connectTo(t, listener.Addr().String()).Wait(ctx, "T", "n", client.GoalRegistered)
	if _, ok := errors.AsType[*client.TimeoutError](err); !ok || !strings.HasSuffix(err.Error(), "does not answer") {
		t.Errorf("the error is %v", err)
	}
	_ = server.Close()
	<-served
	if n := late.Load(); n != 0 {
		t.Errorf("%d calls were made after the context had ended", n)
	}
}

func TestEvents(t *testing.T) {
	want := []*patchbayv1.Event{
		{Seq: 1, Time: timestamppb.Now(), Kind: "registered", Type: "T", Name: "n", Message: "m"},
		{Seq: 2, Kind: "deregistered"},
	}
	var asked *patchbayv1.WatchEventsRequest
	c, _ := serve(t, &service{watch: func(_ context.Context, request *patchbayv1.WatchEventsRequest, send func(*patchbayv1.Event) error) error {
		asked = request
		return errors.Join(send(nil), send(want[0]), send(want[1]))
	}})
	var got []*patchbayv1.Event
	for event, err := range c.Events(t.Context(), &patchbayv1.WatchEventsRequest{Tail: new(uint32(2))}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, event)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if asked.GetFollow() || asked.GetTail() != 2 {
		t.Errorf("asked for %v", asked)
	}
}

// TestEventsEnd ends streams that would go on forever.
func TestEventsEnd(t *testing.T) {
	endless := func(ctx context.Context, _ *patchbayv1.WatchEventsRequest, send func(*patchbayv1.Event) error) error {
		if err := send(&patchbayv1.Event{Seq: 1}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	drain := func(c *client.Client, ctx context.Context, first func() (stop bool)) error {
		for _, err := range c.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true}) {
			if err != nil {
				return err
			}
			if first() {
				return nil
			}
		}
		return errors.New("the sequence ended without an error")
	}
	t.Run("left early", func(t *testing.T) {
		c, _ := serve(t, &service{watch: endless})
		if err := drain(c, t.Context(), func() bool { return true }); err != nil {
			t.Error(err)
		}
	})
	t.Run("context", func(t *testing.T) {
		c, _ := serve(t, &service{watch: endless})
		ctx, cancel := context.WithCancel(t.Context())
		err := drain(c, ctx, func() bool { cancel(); return false })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("killed", func(t *testing.T) {
		c, kill := serve(t, &service{watch: endless})
		err := drain(c, t.Context(), func() bool { kill(); return false })
		if !errors.Is(err, client.ErrNotRunning) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("behind", func(t *testing.T) {
		c, _ := serve(t, &service{watch: func(context.Context, *patchbayv1.WatchEventsRequest, func(*patchbayv1.Event) error) error {
			return connect.NewError(connect.CodeResourceExhausted, errors.New("lost"))
		}})
		if err := drain(c, t.Context(), func() bool { return false }); !errors.Is(err, client.ErrBehind) {
			t.Errorf("got %v", err)
		}
	})
}

func TestMain(m *testing.M) { leaktest.Main(m) }
