package server

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestServerFails takes the listener away from a server.
func TestServerFails(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan struct{})
	s := Start("the test", listener, &http.Server{}, func() { close(failed) }, slog.New(slog.DiscardHandler))
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	<-failed
	if err := s.Stop(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}

// TestServerStopsWithoutItsCallers: a call that does not end is cut off, and its server has stopped all the same.
func TestServerStopsWithoutItsCallers(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	called, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	defer func() { close(end); <-ended }()
	s := Start("the test", listener, &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		defer close(ended)
		close(called)
		<-end
	})}, func() { t.Error("the server failed") }, slog.New(slog.DiscardHandler))
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: test\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	<-called
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
