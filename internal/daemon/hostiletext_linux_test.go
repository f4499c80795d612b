package daemon_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// TestTextThatIsNotUTF8 has a plugin's socket and a caller's method have names that neither a label of a metric nor a span may have: the
// daemon goes on, and what is traced is not lost.
func TestTextThatIsNotUTF8(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, c := grpc.NewServer(), &traces{}
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	config := configIn(t)
	config.Tracing.Endpoint = "http://" + listener.Addr().String()
	url, stop := httpOf(t, config)
	elsewhere := filepath.Join(filepath.Dir(config.State), "foo.sock") // what it announces
	plugin := pluginwatcher.NewTestExamplePlugin("foo", "ExamplePlugin", elsewhere, "v1")
	if err := plugin.Serve(); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(elsewhere, filepath.Join(config.PluginDirs[0], "\xff.sock")); err != nil {
		t.Fatal(err)
	}
	defer plugin.Stop()
	if _, err := dial(t, config).Wait(within(t), "ExamplePlugin", "foo", client.GoalRegistered); err != nil {
		t.Fatal(err)
	}

	h2c := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return sock.Dial(ctx, config.ControlSocket)
	}}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	defer h2c.CloseIdleConnections()
	request, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://x/s/%ff", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	request.Header.Set(proxy.TypeKey, "ExamplePlugin")
	request.Header.Set(proxy.NameKey, "foo")
	answer, err := h2c.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	if code := answer.Header.Get("Grpc-Status") + answer.Trailer.Get("Grpc-Status"); code != "12" { // UNIMPLEMENTED
		t.Errorf("the call has status %q, %v", code, err)
	}
	if counted := get(t, url+"/metrics"); !strings.Contains(counted, `patchbay_plugin_rpcs_total{code="Unimplemented",method="other"} 1`) {
		t.Errorf("the call is not counted: %s", counted)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.ContainsFunc(c.spans, func(s *tracev1.Span) bool { return s.Name == "register plugin" }) {
		t.Errorf("the registration is not traced: %d spans", len(c.spans))
	}
}

// get returns the body of an answer.
func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	for err != nil && request.Context().Err() == nil { // the daemon waits for no request longer than httpTimeout, and this machine is busy
		response, err = http.DefaultClient.Do(request)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
