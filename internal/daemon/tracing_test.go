package daemon_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/client"
)

// traces is a collector of traces.
type traces struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracev1.Span
}

func (c *traces) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestTracing(t *testing.T) {
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
	stop := start(t, config)
	serveExample(t, config, "foo")
	if _, err := dial(t, config).Wait(within(t), "ExamplePlugin", "foo", client.GoalRegistered); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil { // sends what is left
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, span := range c.spans {
		names = append(names, span.Name)
		if !slices.Equal(span.TraceId, c.spans[0].TraceId) {
			t.Errorf("%s is in a trace of its own", span.Name)
		}
	}
	slices.Sort(names)
	if want := []string{"GetInfo", "connect", "notify", "register", "register plugin", "save", "validate"}; !slices.Equal(names, want) {
		t.Errorf("spans %v, want %v", names, want)
	}
}

// A collector that is not there holds up neither the daemon nor its end.
func TestTracingWithoutACollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // it accepts and says nothing
	config := configIn(t)
	config.Tracing.Endpoint = "http://" + listener.Addr().String()
	stop := start(t, config)
	serveExample(t, config, "foo")
	if _, err := dial(t, config).Wait(within(t), "ExamplePlugin", "foo", client.GoalRegistered); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestTracingWantsModernTLS has the daemon meet a collector that speaks TLS 1.2 only.
func TestTracingWantsModernTLS(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	server := httptest.NewUnstartedServer(nil) // has a certificate
	server.StartTLS()
	defer server.Close()
	for _, most := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := configIn(t)
		config.Tracing.Endpoint = "https://" + listener.Addr().String()
		stop := start(t, config)
		serveExample(t, config, "foo") // whose registration is traced
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		err = tls.Server(conn, &tls.Config{Certificates: server.TLS.Certificates, MaxVersion: most, NextProtos: []string{"h2"}}).Handshake()
		// The certificate is that of nobody whom the system trusts: with TLS 1.3 that is why it fails.
		if err == nil || strings.Contains(err.Error(), "client offered only unsupported versions") != (most == tls.VersionTLS12) {
			t.Errorf("TLS up to %x: %v", most, err)
		}
		_ = conn.Close()
		_ = stop() // that nothing could be sent is not an error
	}
}
