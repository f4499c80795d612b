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
	// writeTimeout bounds how long writing one message to a viewer may take.
	writeTimeout = 10 * time.Second
	// pingInterval is the time between pings on an idle stream. They let both sides detect a dead connection.
	pingInterval = 15 * time.Second
	// logTail is how many past records of a log are shown.
	logTail = 200
	// maxStreams is how many streams may be open, so that connections are left for other clients.
	maxStreams = 64
)

// policy allows the page to load only its own script, style, images and data.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page at /, its files below /page/, and its data below /api/. It accepts only GET and HEAD.
type Handler struct {
	mux     *http.ServeMux
	hub     *hub
	streams chan struct{} // a semaphore for maxStreams
}

// New returns a handler that shows the data of source.
func New(source Source) *Handler {
	h := &Handler{mux: http.NewServeMux(), hub: newHub(source), streams: make(chan struct{}, maxStreams)}
	page, err := fs.Sub(embedded, "page")
	if err != nil {
		panic(err) // the directory is embedded
	}
	files := http.StripPrefix("/page/", http.FileServerFS(page))
	h.mux.Handle("GET /page/{file}", files)
	h.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, page, "index.html") })
	h.mux.HandleFunc("GET /api/stream", h.limitStreams(h.stream))
	h.mux.HandleFunc("GET /api/log", h.limitStreams(func(w http.ResponseWriter, r *http.Request) { h.log(w, r, source) }))
	h.mux.HandleFunc("GET /api/events", h.limitStreams(func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, encodeAll(source.EventsOf(r.URL.Query().Get("type"), r.URL.Query().Get("name"))))
	}))
	h.mux.HandleFunc("GET /api/fleet", func(w http.ResponseWriter, r *http.Request) { fleetPlugins(w, r, source) })
	return h
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(marshal(v)) // an error means that the client has disconnected
}

func fleetPlugins(w http.ResponseWriter, r *http.Request, source Source) {
	fleet := source.Fleet()
	if fleet == nil {
		http.Error(w, "this node does not belong to a fleet", http.StatusNotFound)
		return
	}
	writeJSON(w, encodeAll(fleet.Plugins(r.URL.Query().Get("node"))))
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	SetPolicy(w.Header())
	if FromOtherSite(r) {
		http.Error(w, "requests from other sites are not allowed", http.StatusForbidden)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// SetPolicy sets headers that prevent browsers from loading anything from other sites, and other sites from embedding or reading the
// response.
func SetPolicy(header http.Header) {
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// FromOtherSite reports whether a page of another site makes the request. Following a link to the status page is allowed.
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

// limitStreams refuses requests while maxStreams are in progress.
func (h *Handler) limitStreams(serve http.HandlerFunc) http.HandlerFunc {
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

// stream sends the snapshot and then its changes.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) {
	out := newStream(r.Context(), w)
	defer out.stop()
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
	defer out.stop()
	out.relay(messages)
}

// stream writes server-sent events to an HTTP response.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	ended   <-chan struct{} // of the request's context
	stop    func() bool     // must be called before the handler returns
}

// newStream starts a response that ends when ctx is done, even if a write is blocked because the client does not read.
func newStream(ctx context.Context, w http.ResponseWriter) stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's timeouts are for short responses; not every ResponseWriter has deadlines
	stop := context.AfterFunc(ctx, func() { _ = control.SetWriteDeadline(time.Unix(1, 0)) })
	return stream{w, control, ctx.Done(), stop}
}

// relay sends messages, and pings while there are none, until the channel is closed or the client has disconnected.
func (s stream) relay(messages <-chan message) {
	idle := time.NewTimer(pingInterval)
	defer idle.Stop()
	for {
		var err error
		select {
		case <-s.ended:
			return
		case <-idle.C:
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
		idle.Reset(pingInterval)
	}
}

func (s stream) write(text string) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	select {
	case <-s.ended: // checked after SetWriteDeadline, which may have replaced the deadline in the past that ends the stream
		return context.Canceled
	default:
	}
	if _, err := io.WriteString(s.w, text); err != nil {
		return err
	}
	return s.control.Flush()
}
