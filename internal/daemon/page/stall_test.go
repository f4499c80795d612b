package page_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
)

// TestServerEndsBeforeViewersThatDoNotRead shuts a server down while a viewer has read the beginning of a large message and reads no more.
func TestServerEndsBeforeViewersThatDoNotRead(t *testing.T) {
	s := &source{plugins: []*patchbayv1.Plugin{{Name: "large", LastError: strings.Repeat("x", 32<<20)}}}
	calls, end := context.WithCancel(context.Background())
	defer end()
	server := &http.Server{Handler: page.New(s), BaseContext: func(net.Listener) context.Context { return calls }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	viewer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer viewer.Close()
	if _, err := io.WriteString(viewer, "GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(viewer).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q, %v", line, err)
	}
	end()
	// A message may take 10 s, which would be longer than this.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		t.Error(errors.Join(err, server.Close()))
	}
	<-served
}
