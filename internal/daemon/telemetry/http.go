package telemetry

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

	"github.com/patchbay-dev/patchbay/internal/daemon/page"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// httpTimeout bounds reading a request and writing its response. It is shorter than [server.StopTimeout], so that a client that does
	// not send or read cannot delay the stop.
	httpTimeout = 2 * time.Second
	// maxHTTPHeader is the maximum size of a request header in bytes.
	maxHTTPHeader = 16 << 10
	// maxHTTPConns is the maximum number of connections; more wait to be accepted. httpIdle is how long a connection may be idle.
	maxHTTPConns = 256
	httpIdle     = 10 * time.Second
)

// Pages serves HTTP: GET /livez reports whether the daemon runs, GET /readyz whether it can register plugins, GET /metrics has the metrics
// for Prometheus, and all other paths belong to the status page. With ?verbose, /readyz lists all checks in the format of Kubernetes
// components. No request changes anything.
type Pages struct {
	// Scanned is closed when the plugin directories have been searched for the first time.
	Scanned <-chan struct{}
	// Readiness has the conditions of /readyz.
	Readiness       Conditions
	Metrics, Status http.Handler
}

// Conditions are the conditions of a daemon.
type Conditions interface {
	Conditions() []plugin.Condition
}

func (p Pages) live(w http.ResponseWriter, r *http.Request) {
	answer(w, nil, r.URL.Query().Has("verbose"))
}

func (p Pages) ready(w http.ResponseWriter, r *http.Request) {
	scan := plugin.Condition{Name: "scan", OK: true}
	select {
	case <-p.Scanned:
	default:
		scan.OK, scan.Message = false, "the plugin directories have not been searched yet"
	}
	answer(w, append([]plugin.Condition{scan}, p.Readiness.Conditions()...), r.URL.Query().Has("verbose"))
}

// answer writes ok if all checks are OK, and otherwise the failed ones. With verbose it lists all checks.
func answer(w http.ResponseWriter, checks []plugin.Condition, verbose bool) {
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
	_, _ = io.WriteString(w, lines.String())
}

// oneLine replaces control characters and bytes that are not UTF-8, which paths may contain.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, untrusted.Valid(s))
}

// isLoopbackHost reports whether a Host header, with or without a port, names this machine by a loopback name or address.
func isLoopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && addr.IsLoopback()
}

// ParseHTTPAddr parses HOST:PORT, where the host is a loopback address or localhost, which is 127.0.0.1.
func ParseHTTPAddr(addr string) (netip.AddrPort, error) {
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

// ServeHTTP implements [http.Handler].
func (p Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	page.SetPolicy(header)
	if !isLoopbackHost(r.Host) {
		// In a DNS rebinding attack, a web page makes its own host name resolve to a loopback address; the browser then sends that name.
		http.Error(w, "the Host header does not name a loopback host: use localhost or a loopback address", http.StatusForbidden)
		return
	}
	if page.FromOtherSite(r) {
		http.Error(w, "requests from the pages of other sites are refused", http.StatusForbidden)
		return
	}
	answer, ok := map[string]http.HandlerFunc{"/livez": p.live, "/readyz": p.ready, "/metrics": p.Metrics.ServeHTTP}[r.URL.Path]
	if !ok {
		answer = p.Status.ServeHTTP
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
	answer(w, r)
}

// ServeHTTP starts a server for the pages and returns. The caller stops the server. If the server fails before that, failed is called.
func ServeHTTP(listener net.Listener, p Pages, failed func(), log *slog.Logger) *server.Server {
	return server.Start("HTTP", netutil.LimitListener(listener, maxHTTPConns), &http.Server{
		Handler:           p,
		ReadHeaderTimeout: httpTimeout,
		ReadTimeout:       httpTimeout,
		WriteTimeout:      httpTimeout,
		IdleTimeout:       httpIdle,
		MaxHeaderBytes:    maxHTTPHeader,
	}, failed, log)
}
