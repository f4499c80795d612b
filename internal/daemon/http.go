package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/netutil"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// httpTimeout bounds one request, and its answer. It is well below stopTimeout, so that a caller that connects and says nothing
	// cannot hold up the end of the daemon for longer than that.
	httpTimeout = 2 * time.Second
	// maxHTTPHeader bounds the header of a request in bytes.
	maxHTTPHeader = 16 << 10
	// maxHTTPConns bounds the connections; more wait to be accepted. httpIdle is how long one may stay without a request.
	maxHTTPConns = 256
	httpIdle     = 10 * time.Second
)

// health answers the questions of supervisors over HTTP: GET /livez, whether the daemon runs at all, and GET /readyz, whether it is as it
// should be. With ?verbose the answer has one line for each part that was checked. The convention is that of the Kubernetes components.
type health struct {
	// scanned is closed when the plugin directories have been searched for the first time.
	scanned    <-chan struct{}
	conditions func() []patchbay.Condition
}

// ServeHTTP implements [http.Handler]. It reads nothing of a request but its line.
func (h health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var checks []patchbay.Condition // none for /livez: that there is an answer says it
	if r.URL.Path == "/readyz" {
		checks = h.ready()
	}
	answer(w, checks, r.URL.Query().Has("verbose"))
}

func (h health) ready() []patchbay.Condition {
	scan := patchbay.Condition{Name: "scan", OK: true}
	select {
	case <-h.scanned:
	default:
		scan.OK, scan.Message = false, "the plugin directories have not been searched yet"
	}
	return append([]patchbay.Condition{scan}, h.conditions()...)
}

// answer says ok if all is, and else what is not. If verbose, it lists everything.
func answer(w http.ResponseWriter, checks []patchbay.Condition, verbose bool) {
	status := http.StatusOK
	var lines strings.Builder
	for _, c := range checks {
		switch {
		case !c.OK:
			status = http.StatusServiceUnavailable
			fmt.Fprintf(&lines, "[-]%s: %s\n", c.Name, oneLine(c.Message))
		case verbose:
			fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
		}
	}
	if lines.Len() == 0 {
		lines.WriteString("ok")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, lines.String()) // whoever asked is gone
}

// oneLine makes a message that may hold any bytes, as paths do, fit for a line of text.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, untrusted.Valid(s))
}

// loopbackHost says whether a Host header, with or without a port, names this machine by a loopback name or address.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && addr.IsLoopback()
}

// parseHTTPAddr reads HOST:PORT, where the host is a loopback address or localhost, which is 127.0.0.1.
func parseHTTPAddr(addr string) (netip.AddrPort, error) {
	numeric := addr
	if host, port, err := net.SplitHostPort(addr); err == nil && strings.EqualFold(host, "localhost") {
		numeric = net.JoinHostPort("127.0.0.1", port)
	}
	parsed, err := netip.ParseAddrPort(numeric)
	if err != nil || !parsed.Addr().IsLoopback() {
		return netip.AddrPort{}, fmt.Errorf("cannot serve HTTP on %q: the address must be that of a loopback interface and a port, "+
			"for example 127.0.0.1:8080", addr)
	}
	return parsed, nil
}

// pages answer over HTTP: /livez and /readyz, /metrics for Prometheus, and the status page. Everything is read only.
type pages struct {
	health          health
	metrics, status http.Handler
}

func (p pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	page.SetPolicy(header)
	if !loopbackHost(r.Host) {
		// A web page can have its own name resolve to a loopback address (DNS rebinding); its browser then sends that name.
		http.Error(w, "the Host header does not name a loopback host: use localhost or a loopback address", http.StatusForbidden)
		return
	}
	if page.FromOtherSite(r) {
		http.Error(w, "requests from the pages of other sites are refused", http.StatusForbidden)
		return
	}
	page, ok := map[string]http.Handler{"/livez": p.health, "/readyz": p.health, "/metrics": p.metrics}[r.URL.Path]
	if !ok {
		page = p.status
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == "/healthz" {
		http.Error(w, "use /livez, which answers while the daemon runs, or /readyz, which answers whether it can register plugins",
			http.StatusNotFound)
		return
	}
	page.ServeHTTP(w, r)
}

// serveHTTP starts a server and returns. The caller stops the server.
func serveHTTP(listener net.Listener, p pages, failed func(), log *slog.Logger) *server.Server {
	return server.Start("HTTP", netutil.LimitListener(listener, maxHTTPConns), &http.Server{
		Handler:           p,
		ReadHeaderTimeout: httpTimeout,
		ReadTimeout:       httpTimeout,
		WriteTimeout:      httpTimeout,
		IdleTimeout:       httpIdle,
		MaxHeaderBytes:    maxHTTPHeader,
	}, failed, log)
}
