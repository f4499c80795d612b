package daemon

import (
	"log/slog"
	"net"
	"net/http"

	"golang.org/x/net/netutil"

	"github.com/patchbay-dev/patchbay/daemon/web"
)

// pages answer over HTTP: /livez and /readyz, /metrics for Prometheus, and the status page. Everything is read only.
type pages struct {
	health          health
	metrics, status http.Handler
}

// ServeHTTP implements [http.Handler].
func (p pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	web.SetPolicy(header)
	if !loopbackHost(r.Host) {
		// A web page can have its own name resolve to a loopback address (DNS rebinding); its browser then sends that name.
		http.Error(w, "the Host header names no loopback host: use localhost or a loopback address", http.StatusForbidden)
		return
	}
	if web.FromOtherSite(r) {
		http.Error(w, "this is not for the pages of other sites", http.StatusForbidden)
		return
	}
	page, ok := map[string]http.Handler{"/livez": p.health, "/readyz": p.health, "/metrics": p.metrics}[r.URL.Path]
	if !ok {
		page = p.status
	}
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
	default:
		page.ServeHTTP(w, r)
	}
}

// serveHTTP starts to serve and returns. The caller ends it with stop.
func serveHTTP(listener net.Listener, p pages, failed func(), log *slog.Logger) *server {
	return startServer("HTTP", netutil.LimitListener(listener, maxHTTPConns), &http.Server{
		Handler:           p,
		ReadHeaderTimeout: httpTimeout,
		ReadTimeout:       httpTimeout,
		WriteTimeout:      httpTimeout,
		IdleTimeout:       httpIdle,
		MaxHeaderBytes:    maxHTTPHeader,
	}, failed, log)
}
