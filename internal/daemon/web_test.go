package daemon_test

import (
	"bufio"
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/daemon"
)

// httpOf runs a daemon that serves HTTP, and returns its base URL.
func httpOf(t *testing.T, config daemon.Options) (url string, stop func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config.HTTPListener = listener
	return "http://" + listener.Addr().String(), start(t, config)
}

// stream opens a stream of the status page, whose lines are sent on until it ends.
func stream(t *testing.T, url string) <-chan string {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t), http.MethodGet, url+"/api/stream", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(response.Body)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	return lines
}

// TestStatusPageOutlivesTheBoundsOfOtherAnswers keeps a stream open for longer than any other answer may take, and then ends the daemon.
func TestStatusPageOutlivesTheBoundsOfOtherAnswers(t *testing.T) {
	t.Parallel()
	config := configIn(t)
	var log bytes.Buffer
	config.Logger = slog.New(slog.NewTextHandler(&log, nil))
	url, stop := httpOf(t, config)
	lines := stream(t, url)
	// Every other answer is cut off after 2 s.
	for quiet := time.After(3 * time.Second); quiet != nil; {
		select {
		case _, ok := <-lines:
			if !ok {
				t.Fatal("the stream has ended")
			}
		case <-quiet:
			quiet = nil
		}
	}
	serveExample(t, config, "late")
	for seen := false; !seen; {
		line, ok := <-lines
		if !ok {
			t.Fatal("the stream has ended before it told of the plugin")
		}
		seen = strings.HasPrefix(line, "data: ") && strings.Contains(line, `"late"`)
	}
	// Calls that do not end by themselves are cut off after a while, which is a warning.
	if err := stop(); err != nil || strings.Contains(log.String(), "aborted") {
		t.Errorf("stop while a browser watches: %v\n%s", err, &log)
	}
	for range lines {
	}
}
