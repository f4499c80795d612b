package registration

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// walk makes both calls and checks what comes back.
func walk(t *testing.T, c *Client) {
	t.Helper()
	info, err := c.GetInfo(t.Context(), 0)
	if err != nil {
		t.Fatalf("GetInfo: %v", err)
	}
	if diff := cmp.Diff(announced, info); diff != "" {
		t.Errorf("GetInfo (-want +got):\n%s", diff)
	}
	if err := c.Notify(t.Context(), 0, true, ""); err != nil {
		t.Errorf("Notify: %v", err)
	}
}

func TestServersOfGRPC(t *testing.T) {
	for name, options := range map[string][]grpc.ServerOption{
		"default":         nil,
		"one stream":      {grpc.MaxConcurrentStreams(1)},
		"large windows":   {grpc.InitialWindowSize(1 << 20), grpc.InitialConnWindowSize(1 << 20)},
		"static windows":  {grpc.StaticStreamWindowSize(1 << 17), grpc.StaticConnWindowSize(1 << 17)},
		"no HPACK table":  {grpc.HeaderTableSize(0)},
		"large table":     {grpc.HeaderTableSize(1 << 20)},
		"header list":     {grpc.MaxHeaderListSize(1 << 10)},
		"keepalive":       {grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: time.Second})},
		"strict":          {grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Hour})},
		"workers":         {grpc.NumStreamWorkers(1)},
		"no write buffer": {grpc.WriteBufferSize(0), grpc.ReadBufferSize(0)},
	} {
		t.Run(name, func(t *testing.T) {
			p := &fakePlugin{}
			path, _ := serve(t, p, options...)
			c := dial(t, path)
			walk(t, c)
			if err := c.Notify(t.Context(), 0, false, "not\x00 today, ä%"); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{"true ", "false not\x00 today, ä%"}, p.told); diff != "" {
				t.Errorf("the plugin was told (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServerOfNetHTTP(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: newServer(&fakePlugin{}), Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	walk(t, dial(t, path))
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

func TestDialErrorsAreClassified(t *testing.T) {
	dir := tempDir(t)
	if _, err := dialAt(t.Context(), filepath.Join(dir, "none")); !sock.IsGone(err) {
		t.Errorf("no socket: %v", err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := dialAt(t.Context(), path); !sock.IsRefused(err) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestStatusOfThePlugin(t *testing.T) {
	for _, want := range []*status.Status{
		status.New(codes.Unavailable, "not ready yet"),
		status.New(codes.Internal, "schlimm: 100 %, \"ä\"\n\x00"),
		status.New(codes.Code(4711), "beyond the list"),
	} {
		p := &fakePlugin{
			getInfo: func(context.Context) (*registerapi.PluginInfo, error) { return nil, want.Err() },
			notify:  func(context.Context, *registerapi.RegistrationStatus) error { return want.Err() },
		}
		path, _ := serve(t, p)
		c := dial(t, path)
		_, err := c.GetInfo(t.Context(), 0)
		for _, err := range []error{err, c.Notify(t.Context(), 0, true, "")} { // the connection survives the plugin's own error
			if got, _ := status.FromError(err); got.Code() != want.Code() || got.Message() != want.Message() {
				t.Errorf("got %v, want %v", err, want)
			}
		}
	}
}

func TestLongStatusIsCut(t *testing.T) {
	p := &fakePlugin{notify: func(context.Context, *registerapi.RegistrationStatus) error {
		return status.Error(codes.Aborted, strings.Repeat("ä", 2000))
	}}
	path, _ := serve(t, p)
	err := dial(t, path).Notify(t.Context(), 0, true, "")
	if s, _ := status.FromError(err); s.Code() != codes.Aborted || len(s.Message()) > maxText || len(s.Message()) < maxText-10 {
		t.Errorf("%v", err)
	}
}

func TestLongReasonIsCut(t *testing.T) {
	p := &fakePlugin{}
	path, _ := serve(t, p)
	if err := dial(t, path).Notify(t.Context(), 0, false, "x"+strings.Repeat("ä", 10_000)); err != nil {
		t.Fatal(err)
	}
	if got, want := p.told[0], "false x"+strings.Repeat("ä", (maxReason-1)/2); got != want {
		t.Errorf("the plugin was told %d bytes, want %d", len(got), len(want))
	}
}

func TestAnswerUpToTheBound(t *testing.T) {
	var info *registerapi.PluginInfo
	p := &fakePlugin{getInfo: func(context.Context) (*registerapi.PluginInfo, error) { return info, nil }}
	path, _ := serve(t, p)
	const overhead = 4 // tag and length of a string of this size
	info = &registerapi.PluginInfo{Name: strings.Repeat("n", maxAnswer-overhead)}
	c := dial(t, path)
	for range 4 { // more than one window in all
		if got, err := c.GetInfo(t.Context(), 0); err != nil || got.Name != info.Name {
			t.Errorf("an answer at the bound: %d bytes, %v", len(got.Name), err)
		}
	}
	info = &registerapi.PluginInfo{Name: info.Name + "n"}
	_, err := c.GetInfo(t.Context(), 0)
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "61441 bytes; at most 61440") {
		t.Errorf("an answer beyond the bound: %v", err)
	}
}

func TestContextReachesThePlugin(t *testing.T) {
	deadlines := make(chan time.Duration, 1)
	p := &fakePlugin{getInfo: func(ctx context.Context) (*registerapi.PluginInfo, error) {
		deadline, _ := ctx.Deadline()
		deadlines <- time.Until(deadline)
		return &registerapi.PluginInfo{}, nil
	}}
	path, _ := serve(t, p)
	for _, timeout := range []time.Duration{time.Minute, 24 * time.Hour, 1000 * time.Hour} {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		if _, err := dial(t, path).GetInfo(ctx, 0); err != nil {
			t.Error(err)
		}
		cancel()
		if got := <-deadlines; got > timeout+time.Second || got < timeout-time.Minute {
			t.Errorf("the plugin sees %v, want %v", got, timeout)
		}
	}
}

func TestContextEndsACall(t *testing.T) {
	entered := make(chan struct{}, 1)
	p := &fakePlugin{getInfo: func(ctx context.Context) (*registerapi.PluginInfo, error) {
		entered <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	path, _ := serve(t, p)

	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	c := dial(t, path)
	if _, err := c.GetInfo(ctx, 0); status.Code(err) != codes.Canceled {
		t.Errorf("canceled: %v", err)
	}
	if err := c.Notify(t.Context(), 0, true, ""); status.Code(err) != codes.Canceled {
		t.Errorf("a call on a connection with half an answer: %v", err)
	}
	_ = c.Close() // has the plugin's call end
	ctx, cancel = context.WithTimeout(t.Context(), moment)
	defer cancel()
	if _, err := dial(t, path).GetInfo(ctx, 0); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("timed out: %v", err)
	}
	if _, err := dial(t, path).GetInfo(ctx, 0); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("timed out before: %v", err)
	}
}

// canceler ends a context as soon as something has been read.
type canceler struct {
	net.Conn
	cancel context.CancelFunc
}

func (c canceler) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.cancel()
	return n, err
}

// TestCanceledAfterTheAnswer cancels a call whose answer is there: it succeeds, and the connection stays usable.
func TestCanceledAfterTheAnswer(t *testing.T) {
	var settings, answer bytes.Buffer
	client := pair(t, func(p *peer) {
		conn := p.UnixConn
		p.Framer = http2.NewFramer(&settings, conn)
		_ = p.WriteSettings()
		for p.request() {
			p.Framer = http2.NewFramer(&answer, conn)
			p.headers(false, ":status", "200", "content-type", "application/grpc")
			p.finish(infoMessage())
			_, _ = conn.Write(append(settings.Bytes(), answer.Bytes()...)) // in one piece
			settings.Reset()
			answer.Reset()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client.conn.in.Reset(canceler{client.socket, cancel})
	if _, err := client.GetInfo(ctx, 0); err != nil {
		t.Fatalf("canceled after the answer: %v", err)
	}
	if ctx.Err() == nil {
		t.Fatal("not canceled")
	}
	client.conn.in.Reset(client.socket)
	if _, err := client.GetInfo(t.Context(), 0); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// late is a context whose deadline is past and whose timer has not fired.
type late struct{ context.Context } //nolint:containedctx // It is a context.

func (late) Deadline() (time.Time, bool) { return time.Unix(1, 0), true }

func TestDeadlineBeforeItsTimer(t *testing.T) {
	path, _ := serve(t, &fakePlugin{})
	c := dial(t, path)
	for _, ctx := range []context.Context{late{t.Context()}, t.Context()} { // a call that fails is the last one, also before it starts
		if _, err := c.GetInfo(ctx, 0); status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
	}
}

// TestExitInNotify is what the CSI registrar does when it is sent a refusal.
func TestExitInNotify(t *testing.T) {
	client := pair(t, func(p *peer) {
		if p.request() {
			p.start()
			p.finish(infoMessage())
			p.request()
		}
	})
	if _, err := client.GetInfo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	err := client.Notify(t.Context(), 0, false, "no")
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("%v", err)
	}
}

// TestUnusualPeer has peers do what is rare and allowed.
func TestUnusualPeer(t *testing.T) {
	for name, play := range map[string]func(*peer){
		"interim headers": func(p *peer) {
			_ = p.WriteSettings()
			p.headers(false, ":status", "100")
			p.headers(false, ":status", "103", "link", "x")
			p.headers(false, ":status", "200", "content-type", "application/grpc+proto")
			p.finish(infoMessage())
		},
		"one byte at a time": func(p *peer) {
			p.start()
			for _, b := range infoMessage() {
				_ = p.WriteData(p.stream, false, []byte{b})
				_ = p.WriteData(p.stream, false, nil)
			}
			p.headers(true, "grpc-status", "0")
		},
		"padding": func(p *peer) {
			_ = p.WriteSettings()
			_ = p.WriteHeaders(http2.HeadersFrameParam{
				StreamID: p.stream, EndHeaders: true, PadLength: 200,
				BlockFragment: p.fields(":status", "200", "content-type", "application/grpc"),
				Priority:      http2.PriorityParam{StreamDep: 7, Weight: 3},
			})
			_ = p.WriteDataPadded(p.stream, false, infoMessage(), make([]byte, 255))
			p.headers(true, "grpc-status", "0", "grpc-message", "")
		},
		"CONTINUATION": func(p *peer) {
			_ = p.WriteSettings()
			block := p.fields(":status", "200", "content-type", "application/grpc", "x", strings.Repeat("y", 3000))
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream, BlockFragment: block[:1]})
			_ = p.WriteContinuation(p.stream, false, block[1:20])
			_ = p.WriteContinuation(p.stream, false, nil)
			_ = p.WriteContinuation(p.stream, true, block[20:])
			p.finish(infoMessage())
		},
		"control frames in between": func(p *peer) {
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 3}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0},
				http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1<<24 - 1}, http2.Setting{ID: 0xfe03, Val: 1})
			_ = p.WriteSettingsAck()
			_ = p.WriteWindowUpdate(0, 4<<20)
			_ = p.WritePing(false, [8]byte{1})
			_ = p.WriteWindowUpdate(p.stream, 5)
			p.headers(false, ":status", "200", "content-type", "application/grpc;x=y")
			_ = p.WritePriority(p.stream, http2.PriorityParam{StreamDep: 9})
			_ = p.WriteRawFrame(0xee, 0xff, p.stream, []byte("greased"))
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			p.finish(infoMessage())
			_ = p.WriteRSTStream(p.stream, http2.ErrCodeNo)
		},
		"HPACK table resized": func(p *peer) {
			_ = p.WriteSettings()
			p.encoder.SetMaxDynamicTableSize(100)
			p.headers(false, ":status", "200", "content-type", "application/grpc")
			p.encoder.SetMaxDynamicTableSize(4096)
			p.finish(infoMessage())
		},
		"graceful end": func(p *peer) {
			_ = p.WriteSettings()
			_ = p.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
			p.headers(false, ":status", "200", "content-type", "application/grpc")
			p.finish(infoMessage())
		},
		"closed at once": func(p *peer) {
			_ = p.WriteSettings()
			_ = p.WritePing(false, [8]byte{})
			p.headers(false, ":status", "200", "content-type", "application/grpc")
			p.finish(infoMessage())
			_ = p.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := pair(t, func(p *peer) {
				if p.request() {
					play(p)
				}
			})
			info, err := client.GetInfo(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(announced, info); diff != "" {
				t.Errorf("GetInfo (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSmallWindow has a peer that takes a few bytes at a time, and says so in both ways that there are.
func TestSmallWindow(t *testing.T) {
	window, bySettings := uint32(7), false
	reason := strings.Repeat("r", maxReason)
	got := make(chan int, 1)
	client := pair(t, func(p *peer) {
		if !p.request() {
			return
		}
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
		p.headers(false, ":status", "200", "content-type", "application/grpc")
		p.finish(infoMessage())
		for {
			f, err := p.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.HeadersFrame:
				p.stream, p.dataLen = f.StreamID, 0
			case *http2.DataFrame:
				if p.dataLen += len(f.Data()); len(f.Data()) > 100 {
					t.Errorf("%d bytes at once", len(f.Data()))
				}
				if f.StreamEnded() {
					got <- p.dataLen
					p.headers(false, ":status", "200", "content-type", "application/grpc")
					p.finish(make([]byte, prefixLen))
					return
				}
				if bySettings = !bySettings; bySettings {
					window += 100
					_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
				} else {
					_ = p.WriteWindowUpdate(p.stream, 100)
				}
			}
		}
	})
	if _, err := client.GetInfo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := client.Notify(t.Context(), 0, false, reason); err != nil {
		t.Fatal(err)
	}
	if n := <-got; n < maxReason {
		t.Errorf("%d bytes arrived", n)
	}
}

// TestNoNewStream has peers that allow no second call.
func TestNoNewStream(t *testing.T) {
	for name, say := range map[string]func(*peer){
		"no streams": func(p *peer) { _ = p.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0}) },
		"GOAWAY":     func(p *peer) { _ = p.WriteGoAway(p.stream, http2.ErrCodeNo, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			client := pair(t, func(p *peer) {
				if p.request() {
					p.start()
					say(p)
					p.finish(infoMessage())
					p.untilClosed()
				}
			})
			if _, err := client.GetInfo(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if err := client.Notify(t.Context(), 0, true, ""); status.Code(err) != codes.Unavailable {
				t.Error(err)
			}
		})
	}
}

// TestEarlyAnswer has a peer that refuses a request before all of it is there.
func TestEarlyAnswer(t *testing.T) {
	client := pair(t, func(p *peer) {
		if !p.request() {
			return
		}
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		p.headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "14", "grpc-message", "later%21%")
		for {
			switch f, err := p.ReadFrame(); f := f.(type) {
			case *http2.HeadersFrame:
				p.stream = f.StreamID
				p.headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "9", "grpc-message", "never")
			case *http2.RSTStreamFrame:
				return
			case nil:
				t.Errorf("no RST_STREAM: %v", err)
				return
			}
		}
	})
	if _, err := client.GetInfo(t.Context(), 0); status.Convert(err).Message() != "later!%" {
		t.Errorf("%v", err)
	}
	if err := client.Notify(t.Context(), 0, true, ""); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%v", err)
	}
}
