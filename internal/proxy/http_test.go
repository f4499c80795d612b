package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// serveOtherwise, if it is not nil, serves the proxy of a test in another way than on a socket of its own.
var serveOtherwise func(t *testing.T, director proxy.Director) (path string)

// TestServeHTTP runs the tests with calls that are requests of an HTTP server: a caller cannot tell the difference.
func TestServeHTTP(t *testing.T) {
	serveOtherwise = serveHTTP
	defer func() { serveOtherwise = nil }()
	for name, test := range map[string]func(*testing.T){
		"Unary": TestUnary, "StatusDetails": TestStatusDetails, "Duplex": TestDuplex, "DeadlineReachesPlugin": TestDeadlineReachesPlugin,
		"DeadlineEndsCall": TestDeadlineEndsCall, "CancellationReachesPlugin": TestCancellationReachesPlugin,
		"PluginEndsEarly": TestPluginEndsEarly, "LargeMessage": TestLargeMessage, "SlowReader": TestSlowReader,
		"MetadataIsBounded": TestMetadataIsBounded, "ContentSubtype": TestContentSubtype, "OwnErrors": TestOwnErrors,
		"Compression": TestCompression, "UnknownEncoding": TestUnknownEncoding, "CallerMistake": TestCallerMistake,
		"ComesBack": TestComesBack, "Lost": TestLost, "HostServicesAreRefused": TestHostServicesAreRefused,
	} {
		t.Run(name, test)
	}
}

// serveHTTP serves calls as requests of an HTTP server until the test ends, and returns the path.
func serveHTTP(t *testing.T, director proxy.Director) string {
	t.Helper()
	budget := h2proxy.NewBudget(h2proxy.DefaultLimits, 0, func(uint32, h2proxy.Reason, bool) {})
	calls := proxy.NewServer(t.Context(), director.Forward, proxy.ServerConfig{Budget: budget})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: calls, Protocols: protocols, ReadHeaderTimeout: patience}
	h2proxy.BoundHTTP(server)
	listener, path := listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if n := budget.Bytes(); n != 0 {
			t.Errorf("%d bytes are still counted", n)
		}
	})
	return path
}

// TestHTTPCallsCount: calls that are requests of an HTTP server count to their users, as all do.
func TestHTTPCallsCount(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	budget := h2proxy.NewBudget(h2proxy.Limits{UserBytes: 1 << 20, Bytes: 2 << 20, UserCalls: 1, Calls: 4}, 0, func(uint32, h2proxy.Reason, bool) {})
	calls := proxy.NewServer(t.Context(), func(_ context.Context, caller grpc.ServerStream) error {
		began <- struct{}{}
		<-release
		return nil
	}, proxy.ServerConfig{Budget: budget, UID: func(r *http.Request) uint32 { return uint32(len(r.Header.Get("user"))) }})
	server := httptest.NewUnstartedServer(calls)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	call := func(user, more string) string {
		t.Helper()
		request, err := http.NewRequestWithContext(within(t), http.MethodPost, server.URL+"/a.B/C", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = http.Header{"Content-Type": {"application/grpc"}, "User": {user}, "More": {more}}
		response, err := server.Client().Do(request)
		if err != nil {
			return err.Error()
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return err.Error()
		}
		return response.Trailer.Get("grpc-status") + " " + response.Trailer.Get("grpc-message")
	}
	first := make(chan string, 1)
	go func() { first <- call("x", "") }()
	wait(t, "the first call has begun", began)
	if got := call("x", ""); got != "8 too many calls are in progress (userCalls); call again later" {
		t.Errorf("another call of the user: %s", got)
	}
	other := make(chan string, 1)
	go func() { other <- call("xy", strings.Repeat("m", 100<<10)) }()
	wait(t, "that of another user has begun", began)
	if n := budget.Bytes(); n < 100<<10 {
		t.Errorf("%d bytes of metadata are counted", n)
	}
	close(release)
	for _, answer := range []chan string{first, other} {
		if got := wait(t, "the status", answer); got != "0 " {
			t.Errorf("the call ended with %s", got)
		}
	}
	if n := budget.Bytes(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// TestHTTPUploadsWait: what a caller sends that is not taken waits with the caller.
func TestHTTPUploadsWait(t *testing.T) {
	const most = 1 << 20
	whole, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(proxy.NewServer(t.Context(), func(context.Context, grpc.ServerStream) error {
		<-release
		return nil
	}, proxy.ServerConfig{}))
	h2proxy.BoundHTTP(server.Config)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(within(t), http.MethodPost, server.URL+"/a.B/C", io.MultiReader(
		bytes.NewReader(make([]byte, most)), readFunc(func([]byte) (int, error) { close(whole); return 0, io.EOF })))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if response, err := server.Client().Do(request); err == nil {
			_ = response.Body.Close()
		}
	}()
	select {
	case <-whole:
		t.Errorf("%d bytes were taken", most)
	case <-time.After(300 * time.Millisecond): // more time finds more
	}
	close(release)
	<-ended
}

type readFunc func(b []byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }
