package telemetry

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestHealth(t *testing.T) {
	pending, done := make(chan struct{}), make(chan struct{})
	close(done)
	discovery := plugin.Condition{Name: "discovery", OK: true}
	degraded := plugin.Condition{Name: "discovery", Message: "/a\nb\xff: no watches left"}
	const (
		scanMissing = "[-]scan: the plugin directories have not been searched yet\n"
		broken      = "[-]discovery: /a\uFFFDb\uFFFD: no watches left\n"
		notFound    = "404 page not found\n"
		healthz     = "use /livez, which answers while the daemon runs, or /readyz, which answers whether it can register plugins\n"
		foreign     = "the Host header does not name a loopback host: use localhost or a loopback address\n"
	)
	for name, test := range map[string]struct {
		method, target, host string
		scanned              chan struct{}
		condition            plugin.Condition
		status               int
		body                 string
	}{
		"live":                   {target: "/livez", status: 200, body: "ok"},
		"live before the scan":   {target: "/livez", scanned: pending, condition: degraded, status: 200, body: "ok"},
		"live, verbose":          {target: "/livez?verbose", status: 200, body: "ok"},
		"ready":                  {target: "/readyz", status: 200, body: "ok"},
		"ready, other parameter": {target: "/readyz?x=verbose", status: 200, body: "ok"},
		"ready, verbose":         {target: "/readyz?verbose", status: 200, body: "[+]scan ok\n[+]discovery ok\n"},
		"before the scan":        {target: "/readyz", scanned: pending, status: 503, body: scanMissing},
		"verbose, before":        {target: "/readyz?verbose=1", scanned: pending, status: 503, body: scanMissing + "[+]discovery ok\n"},
		"degraded":               {target: "/readyz", condition: degraded, status: 503, body: broken},
		"degraded, verbose":      {target: "/readyz?verbose", condition: degraded, status: 503, body: "[+]scan ok\n" + broken},
		"neither":                {target: "/readyz", scanned: pending, condition: degraded, status: 503, body: scanMissing + broken},
		"root":                   {target: "/", status: 404, body: notFound},
		"another system's":       {target: "/healthz", status: 404, body: healthz},
		"below":                  {target: "/livez/", status: 404, body: notFound},
		"unclean":                {target: "//livez", status: 404, body: notFound},
		"elsewhere":              {method: "POST", target: "/metric", status: 405, body: "use GET\n"},
		"post":                   {method: "POST", target: "/livez", status: 405, body: "use GET\n"},
		"options":                {method: "OPTIONS", target: "/readyz", status: 405, body: "use GET\n"},
		"name":                   {target: "/livez", host: "LocalHost:80", status: 200, body: "ok"},
		"name without a port":    {target: "/livez", host: "localhost", status: 200, body: "ok"},
		"IPv4":                   {target: "/livez", host: "127.8.8.8", status: 200, body: "ok"},
		"IPv6":                   {target: "/livez", host: "[::1]:80", status: 200, body: "ok"},
		"IPv6 without a port":    {target: "/livez", host: "[::1]", status: 200, body: "ok"},
		"foreign name":           {target: "/livez", host: "evil.example:80", status: 403, body: foreign},
		"name that looks local":  {target: "/livez", host: "localhost.evil.example", status: 403, body: foreign},
		"name like an address":   {target: "/livez", host: "127.0.0.1.evil.example", status: 403, body: foreign},
		"foreign address":        {target: "/livez", host: "192.0.2.1:80", status: 403, body: foreign},
		"unspecified address":    {target: "/livez", host: "0.0.0.0", status: 403, body: foreign},
		"no host":                {target: "/livez", host: "-", status: 403, body: foreign},
		"foreign before 404":     {target: "/", host: "evil.example", status: 403, body: foreign},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pages{Scanned: done, Readiness: conditionList{discovery}, Metrics: http.NotFoundHandler(), Status: http.NotFoundHandler()}
			if test.condition.Name != "" {
				p.Readiness = conditionList{test.condition}
			}
			if test.scanned != nil {
				p.Scanned = test.scanned
			}
			request := httptest.NewRequest(test.method, test.target, http.NoBody)
			switch test.host {
			case "":
				request.Host = "127.0.0.1:8080"
			case "-":
				request.Host = ""
			default:
				request.Host = test.host
			}
			response := httptest.NewRecorder()
			p.ServeHTTP(response, request)
			if response.Code != test.status || response.Body.String() != test.body {
				t.Errorf("got %d %q, want %d %q", response.Code, response.Body, test.status, test.body)
			}
			if allow := response.Header().Get("Allow"); (allow != "") != (test.status == http.StatusMethodNotAllowed) {
				t.Errorf("Allow is %q", allow)
			}
		})
	}
}

type conditionList []plugin.Condition

func (l conditionList) Conditions() []plugin.Condition { return l }

func TestParseHTTPAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:8080":  "127.0.0.1:8080",
		"127.1.2.3:0":     "127.1.2.3:0",
		"[::1]:80":        "[::1]:80",
		"localhost:80":    "127.0.0.1:80",
		"LOCALHOST:80":    "127.0.0.1:80",
		"":                "",
		":8080":           "",
		"8080":            "",
		"127.0.0.1":       "",
		"localhost":       "",
		"localhost:http":  "",
		"localhost:65536": "",
		"0.0.0.0:80":      "",
		"[::]:80":         "",
		"192.0.2.1:80":    "",
		"example.com:80":  "",
		"::1:80":          "",
	} {
		got, err := ParseHTTPAddr(addr)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%q: got %v, %v, want %q", addr, got, err, want)
		}
	}
}

func serveHealthHere(t *testing.T, failed func()) (*server.Server, net.Listener) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ServeHTTP(listener, Pages{Metrics: http.NotFoundHandler()}, failed, slog.New(slog.DiscardHandler)), listener
}

// TestSilentCallers stops the server while connections are open on which nothing, or half a request, was said, and one that is idle.
func TestSilentCallers(t *testing.T) {
	s, listener := serveHealthHere(t, func() { t.Error("the server failed") })
	for _, said := range []string{"", "GET /livez HTTP/1.1\r\nHos", "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, said); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
