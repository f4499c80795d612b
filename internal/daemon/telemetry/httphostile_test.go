package telemetry

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// httpHere serves the HTTP listener with handlers that answer everything, and returns its address.
func httpHere(t *testing.T, status http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	scanned := make(chan struct{})
	close(scanned)
	metrics := NewMetrics("", "", handlerTypes{})
	s := ServeHTTP(listener, Pages{Scanned: scanned, Readiness: conditionList{}, Metrics: metrics.Handler(), Status: status},
		func() { t.Error("the server failed") }, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

var everything = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") })

// answered is an answer to raw text.
type answered struct {
	code   int
	header http.Header
	body   string
}

// say sends raw text.
func say(t *testing.T, addr, text string) answered {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body) // it may be cut off by a server that has not read all
	return answered{response.StatusCode, response.Header, string(body)}
}

// TestNoWayInFromAWebPage asks as the pages of other sites can, and with their tricks.
func TestNoWayInFromAWebPage(t *testing.T) {
	addr := httpHere(t, everything)
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/api/stream", "/page/app.js"} {
		for name, test := range map[string]struct {
			headers string
			status  int
		}{
			"the page itself":       {"Host: " + addr + "\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n", 200},
			"a tool":                {"Host: " + addr + "\r\n", 200},
			"rebound name":          {"Host: evil.example\r\n", 403},
			"rebound, same origin":  {"Host: evil.example\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: same-origin\r\n", 403},
			"fetch of another site": {"Host: " + addr + "\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n", 403},
			"image of another site": {"Host: " + addr + "\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", 403},
			"frame of another site": {"Host: " + addr + "\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n", 403},
			"another port":          {"Host: " + addr + "\r\nOrigin: http://127.0.0.1:1\r\nSec-Fetch-Site: same-site\r\n", 403},
			"old browser":           {"Host: " + addr + "\r\nOrigin: null\r\n", 403},
			"web socket":            {"Host: " + addr + "\r\nOrigin: http://evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n", 403},
		} {
			got := say(t, addr, "GET "+path+" HTTP/1.1\r\n"+test.headers+"\r\n")
			if got.code != test.status {
				t.Errorf("%s, %s: %d, want %d", path, name, got.code, test.status)
			}
			if test.status == http.StatusForbidden && strings.Contains(got.body, "secret") {
				t.Errorf("%s, %s: the answer is %q", path, name, got.body)
			}
			for _, header := range []string{"Content-Security-Policy", "X-Content-Type-Options", "Cross-Origin-Resource-Policy", "Referrer-Policy"} {
				if got.header.Get(header) == "" {
					t.Errorf("%s, %s: no header %s", path, name, header)
				}
			}
			for header := range got.header {
				if strings.HasPrefix(header, "Access-Control-") {
					t.Errorf("%s, %s: header %s shares the answer", path, name, header)
				}
			}
		}
	}
}

// TestControlAPIIsNotOnHTTP calls every method of the control API, and a plugin, where the status page is.
func TestControlAPIIsNotOnHTTP(t *testing.T) {
	addr := httpHere(t, http.NotFoundHandler())
	for _, procedure := range []string{
		"/patchbay.v1.ControlService/ListPlugins", "/patchbay.v1.ControlService/Reload", "/patchbay.v1.FleetService/ListNodes",
		"/patchbay.v1.DeviceService/ListDevices", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/a.B/C",
	} {
		for method, want := range map[string]int{"POST": 405, "PUT": 405, "DELETE": 405, "OPTIONS": 405, "CONNECT": 405, "PRI": 405, "GET": 404} {
			got := say(t, addr, method+" "+procedure+" HTTP/1.1\r\nHost: "+addr+
				"\r\nContent-Type: application/json\r\nConnect-Protocol-Version: 1\r\nContent-Length: 2\r\n\r\n{}")
			if got.code != want {
				t.Errorf("%s %s: %d, want %d", method, procedure, got.code, want)
			}
		}
	}
	// HTTP/2, which gRPC needs, is not spoken here.
	if got := say(t, addr, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); got.code/100 != 4 && got.code != http.StatusHTTPVersionNotSupported {
		t.Errorf("the preface of HTTP/2: %d", got.code)
	}
}

// TestHTTPBounds meets callers who say too much, too slowly, or too often.
func TestHTTPBounds(t *testing.T) {
	var mu sync.Mutex
	busy, most := 0, 0
	release := make(chan struct{})
	addr := httpHere(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		busy++
		most = max(most, busy)
		mu.Unlock()
		<-release
		mu.Lock()
		busy--
		mu.Unlock()
	}))
	got := say(t, addr, "GET /livez HTTP/1.1\r\nHost: "+addr+"\r\nX: "+strings.Repeat("x", 2*maxHTTPHeader)+"\r\n\r\n")
	if got.code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %d", got.code)
	}
	slow, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := io.WriteString(slow, "GET /livez HTTP/1.1\r\nHost: "); err != nil {
		t.Fatal(err)
	}
	_ = slow.SetReadDeadline(time.Now().Add(30 * time.Second))
	if answer, err := io.ReadAll(slow); err != nil || bytes.Contains(answer, []byte("200 OK")) {
		t.Errorf("half a header is not cut off: %q, %v", answer, err)
	}

	var callers sync.WaitGroup
	for range maxHTTPConns + 50 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		callers.Go(func() {
			defer conn.Close()
			_, _ = io.WriteString(conn, "GET /slow HTTP/1.1\r\nHost: "+addr+"\r\nConnection: close\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		mu.Lock()
		full := busy == maxHTTPConns
		mu.Unlock()
		if full {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the places are not taken")
		}
	}
	close(release)
	callers.Wait() // the others had their turn
	if most != maxHTTPConns {
		t.Errorf("%d requests at once, want %d", most, maxHTTPConns)
	}
}
