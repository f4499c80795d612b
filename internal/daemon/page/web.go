package page

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"sync"
	"time"
)

//go:embed page
var embedded embed.FS

const (
	// writeTimeout bounds how long a viewer may take for one message.
	writeTimeout = 10 * time.Second
	// ping is how often something is said on a stream on which nothing happens, so that both sides notice when it is dead.
	ping = 15 * time.Second
	// logTail is how many past records of a log are shown.
	logTail = 200
	// maxStreams bounds the streams that are open at once, so that they leave connections for others.
	maxStreams = 64
)

// policy lets the page load its own script, style and data, and nothing else from anywhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page at / and what it needs below /page/ and /api/. It answers GET and HEAD only.
type Handler struct {
	mux *http.ServeMux
	hub *hub
	// streams has a place for each stream.
	streams chan struct{}
}

// New returns a handler that shows a source.
func New(source Source) *Handler {
	h := &Handler{mux: http.NewServeMux(), hub: newHub(source), streams: make(chan struct{}, maxStreams)}
	page, err := fs.Sub(embedded, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	files := http.StripPrefix("/page/", http.FileServerFS(page))
	h.mux.Handle("GET /page/{file}", files)
	h.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, page, "index.html") })
	h.mux.HandleFunc("GET /api/stream", h.bounded(h.stream))
	h.mux.HandleFunc("GET /api/log", h.bounded(func(w http.ResponseWriter, r *http.Request) { h.log(w, r, source) }))
	h.mux.HandleFunc("GET /api/events", h.bounded(func(w http.ResponseWriter, r *http.Request) {
		answer(w, encodeAll(source.EventsOf(r.URL.Query().Get("type"), r.URL.Query().Get("name"))))
	}))
	h.mux.HandleFunc("GET /api/fleet", func(w http.ResponseWriter, r *http.Request) { fleetPlugins(w, r, source) })
	return h
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(marshal(v)) // whoever asked is gone
}

func fleetPlugins(w http.ResponseWriter, r *http.Request, source Source) {
	fleet, err := source.Fleet()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if fleet == nil {
		http.Error(w, "this node belongs to no fleet", http.StatusNotFound)
		return
	}
	defer fleet.Close()
	answer(w, encodeAll(fleet.Plugins(r.URL.Query().Get("node"))))
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	SetPolicy(w.Header())
	if FromOtherSite(r) {
		http.Error(w, "this is for the page itself, and not for other sites", http.StatusForbidden)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// SetPolicy sets the headers of an answer that keep browsers from loading anything from elsewhere, and other sites from showing or reading
// what is answered.
func SetPolicy(header http.Header) {
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// FromOtherSite says whether a browser makes a request for the page of another site. To follow a link to the page itself is allowed.
func FromOtherSite(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host && origin != "https://"+r.Host {
		return true
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	mode := r.Header.Get("Sec-Fetch-Mode")
	return r.URL.Path != "/" || mode != "" && mode != "navigate"
}

// bounded refuses streams above the bound.
func (h *Handler) bounded(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case h.streams <- struct{}{}:
			defer func() { <-h.streams }()
			serve(w, r)
		default:
			http.Error(w, "too many pages are open: close some", http.StatusServiceUnavailable)
		}
	}
}

// stream answers with the picture and then with its changes.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) {
	out := newStream(r.Context(), w)
	defer out.end()
	viewer := h.hub.join()
	defer h.hub.leave(viewer)
	out.relay(viewer)
}

func (h *Handler) log(w http.ResponseWriter, r *http.Request, source Source) {
	ctx, cancel := context.WithCancel(r.Context())
	records, err := source.Log(ctx, r.URL.Query().Get("name"), logTail)
	if err != nil {
		cancel()
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	messages := make(chan message, 1)
	messages <- message{"begin", []byte("{}")}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(messages)
		for record := range records {
			select {
			case messages <- message{"record", encode(record)}:
			case <-ctx.Done():
				return
			}
		}
	})
	defer reading.Wait()
	defer cancel()
	out := newStream(r.Context(), w)
	defer out.end()
	out.relay(messages)
}

// stream is an answer of server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	// ended is closed when nothing more is to be sent.
	ended <-chan struct{}
	// end is called when the handler is done: the connection may be used for another answer.
	end func() bool
}

// newStream begins an answer that ends with ctx, even while a viewer reads nothing and a message is stuck: the server would have to wait.
func newStream(ctx context.Context, w http.ResponseWriter) stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	// The server's own bounds are for short answers. Where there is none, or no way to lift it, this does nothing.
	_ = control.SetReadDeadline(time.Time{})
	cutShort := context.AfterFunc(ctx, func() { _ = control.SetWriteDeadline(time.Unix(1, 0)) })
	return stream{w, control, ctx.Done(), cutShort}
}

// relay sends what comes, and pings while nothing does, until nothing more comes or the viewer is gone.
func (s stream) relay(messages <-chan message) {
	quiet := time.NewTimer(ping)
	defer quiet.Stop()
	for {
		var err error
		select {
		case <-s.ended:
			return
		case <-quiet.C:
			err = s.write(":\n\n")
		case m, ok := <-messages:
			if !ok {
				return
			}
			err = s.write(fmt.Sprintf("event: %s\nretry: 1000\ndata: %s\n\n", m.event, m.data))
		}
		if err != nil {
			return
		}
		quiet.Reset(ping)
	}
}

func (s stream) write(text string) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	select {
	case <-s.ended: // looked at after the deadline was set, which is not the one of the end then
		return context.Canceled
	default:
	}
	if _, err := io.WriteString(s.w, text); err != nil {
		return err
	}
	return s.control.Flush()
}
