package page_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 2 * time.Minute

// source is a daemon made of memory.
type source struct {
	mu       sync.Mutex
	plugins  []*patchbayv1.Plugin
	past     []*patchbayv1.Event
	live     []chan *patchbayv1.Event
	followed int
}

func (s *source) Plugins() []*patchbayv1.Plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.plugins)
}

func (s *source) Launched() []*patchbayv1.LaunchedPlugin {
	return []*patchbayv1.LaunchedPlugin{{Name: "hello", State: "running"}}
}

func (s *source) Conditions() []*patchbayv1.Condition {
	return []*patchbayv1.Condition{{Name: "discovery", Status: "ok"}}
}

func (s *source) LastEvents(n int) []*patchbayv1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.past[max(len(s.past)-n, 0):])
}

func (s *source) EventsOf(ptype, name string) []*patchbayv1.Event {
	return slices.DeleteFunc(s.LastEvents(math.MaxInt), func(e *patchbayv1.Event) bool { return e.GetType() != ptype || e.GetName() != name })
}

func (s *source) Events(ctx context.Context) <-chan *patchbayv1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followed++
	ch := make(chan *patchbayv1.Event)
	s.live = append(s.live, ch)
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.followed--
	})
	return ch
}

func (s *source) Log(ctx context.Context, name string, n int) (iter.Seq[*patchbayv1.LogRecord], error) {
	if name != "hello" {
		return nil, errors.New("no launched plugin " + name + " is known")
	}
	return func(yield func(*patchbayv1.LogRecord) bool) {
		if yield(&patchbayv1.LogRecord{Message: "<b>line</b>"}) {
			<-ctx.Done()
		}
	}, nil
}

func (*source) About() (*patchbayv1.GetVersionResponse, *patchbayv1.GetConfigurationResponse) {
	return nil, nil
}
func (*source) Fleet() page.Fleet { return nil }

// set changes the plugins and tells of it.
func (s *source) set(plugins ...*patchbayv1.Plugin) {
	s.mu.Lock()
	s.plugins = plugins
	e := &patchbayv1.Event{Seq: uint64(len(s.past) + 1), Kind: "registered"}
	s.past = append(s.past, e)
	live := s.live[len(s.live)-1]
	s.mu.Unlock()
	live <- e
}

func serve(t *testing.T, s *source) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(page.New(s))
	t.Cleanup(server.Close)
	return server
}

// viewer reads a stream.
type viewer struct {
	t     *testing.T
	lines *bufio.Scanner
	close func()
}

func view(t *testing.T, server *httptest.Server, path string) *viewer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	v := &viewer{t, bufio.NewScanner(response.Body), sync.OnceFunc(func() { cancel(); response.Body.Close() })}
	v.lines.Buffer(nil, 64<<20)
	t.Cleanup(v.close)
	return v
}

type update struct {
	Set    map[string]map[string]any
	Events []map[string]any
	// Message is that of a record of a log.
	Message string
}

// next reads the next message of a kind.
func (v *viewer) next(kind string) (u update) {
	v.t.Helper()
	for v.lines.Scan() {
		if v.lines.Text() != "event: "+kind {
			continue
		}
		for v.lines.Scan() {
			if data, ok := strings.CutPrefix(v.lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &u); err != nil {
					v.t.Fatal(err)
				}
				return u
			}
		}
	}
	v.t.Fatalf("the stream ended before %s: %v", kind, v.lines.Err())
	return u
}

func plugin(name, state string) *patchbayv1.Plugin {
	return &patchbayv1.Plugin{Type: "T", Name: name, State: state, SocketPath: "/" + name}
}

func TestStream(t *testing.T) {
	s := &source{plugins: []*patchbayv1.Plugin{plugin("a", "registered"), plugin("b", "registered")}}
	server := serve(t, s)
	first := view(t, server, "/api/stream")
	whole := first.next("state")
	if len(whole.Set) != 4 || whole.Set["plugin /a  T/a"]["state"] != "registered" || whole.Set["launched hello"]["state"] != "running" {
		t.Errorf("%+v", whole)
	}
	s.set(plugin("a", "backoff"), plugin("c", "registered"))
	change := first.next("change")
	if len(change.Set) != 3 || change.Set["plugin /a  T/a"]["state"] != "backoff" || len(change.Events) != 1 {
		t.Errorf("%+v", change)
	}
	if gone, told := change.Set["plugin /b  T/b"]; gone != nil || !told {
		t.Errorf("b: %v, %v", gone, told)
	}

	second := view(t, server, "/api/stream")
	if whole := second.next("state"); len(whole.Set) != 4 || len(whole.Events) != 1 {
		t.Errorf("%+v", whole)
	}
	s.set(plugin("a", "backoff"))
	for _, v := range []*viewer{first, second} {
		if change := v.next("change"); len(change.Set) != 1 {
			t.Errorf("%+v", change)
		}
	}
	s.mu.Lock()
	followed := s.followed
	s.mu.Unlock()
	if followed != 1 {
		t.Errorf("the source is followed %d times", followed)
	}
	first.close()
	second.close()
	server.Close()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // the source learns of it in a goroutine of its own
		s.mu.Lock()
		followed := s.followed
		s.mu.Unlock()
		if followed == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the source is followed without a viewer")
		}
	}
}

// States that no event tells of are seen all the same.
func TestChangesWithoutAnEvent(t *testing.T) {
	s := &source{plugins: []*patchbayv1.Plugin{plugin("a", "validating")}}
	v := view(t, serve(t, s), "/api/stream")
	v.next("state")
	s.mu.Lock()
	s.plugins = []*patchbayv1.Plugin{plugin("a", "registering")}
	s.mu.Unlock()
	if change := v.next("change"); len(change.Set) != 1 || len(change.Events) != 0 {
		t.Errorf("%+v", change)
	}
}

// A viewer is cut off when the source ends, and when it reads too slowly; its browser connects anew.
func TestViewersAreCutOff(t *testing.T) {
	s := &source{}
	v := view(t, serve(t, s), "/api/stream")
	v.next("state")
	s.mu.Lock()
	live := s.live[0]
	s.mu.Unlock()
	close(live)
	for v.lines.Scan() {
	}
	if err := v.lines.Err(); err != nil {
		t.Error(err)
	}
}

func TestLog(t *testing.T) {
	server := serve(t, &source{})
	v := view(t, server, "/api/log?name=hello")
	v.next("begin")
	if got := v.next("record"); got.Message != "<b>line</b>" {
		t.Errorf("%+v", got)
	}
	response, err := server.Client().Get(server.URL + "/api/log?name=other")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("%d", response.StatusCode)
	}
}

func TestPage(t *testing.T) {
	server := serve(t, &source{})
	for path, want := range map[string]string{
		"/": "<!doctype html>", "/page/app.js": "EventSource", "/page/style.css": "prefers-reduced-motion", "/page/icon.svg": "<svg",
	} {
		response, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %v: %.100s", path, err, body)
		}
		policy := response.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %q", path, policy)
		}
		if text := string(body); strings.Contains(text, "innerHTML") || strings.Contains(text, "<script>") || strings.Contains(text, " style=") ||
			strings.Contains(text, "http://") && !strings.Contains(text, "http://www.w3.org/2000/svg") || strings.Contains(text, "https://") {
			t.Errorf("%s has what the policy or the rules of the page forbid", path)
		}
	}
	for _, path := range []string{"/page/", "/page/../web.go", "/api/", "/nothing"} {
		response, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", path, response.StatusCode)
		}
	}
}

// TestTooManyStreams has more viewers than there are places: the rest of the page goes on, and a place that is left is taken.
func TestTooManyStreams(t *testing.T) {
	server := serve(t, &source{})
	var viewers []*viewer
	for range 64 {
		v := view(t, server, "/api/log?name=hello")
		v.next("begin")
		viewers = append(viewers, v)
	}
	status := func(path string) int {
		response, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	for path, want := range map[string]int{
		"/api/stream": http.StatusServiceUnavailable, "/api/log?name=hello": http.StatusServiceUnavailable, "/": http.StatusOK,
	} {
		if got := status(path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	viewers[0].close()
	for deadline := time.Now().Add(patience); status("/api/log?name=other") != http.StatusNotFound; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the place of a viewer who left is not free")
		}
	}
}

func TestFromOtherSite(t *testing.T) {
	for _, test := range []struct {
		path, origin, site, mode string
		want                     bool
	}{
		{"/", "", "", "", false},
		{"/api/stream", "", "same-origin", "cors", false},
		{"/api/stream", "http://localhost:80", "", "", false},
		{"/api/stream", "http://evil.example", "", "", true},
		{"/api/stream", "http://localhost:81", "same-site", "cors", true},
		{"/api/stream", "null", "", "", true},
		{"/metrics", "", "cross-site", "no-cors", true},
		{"/metrics", "", "cross-site", "navigate", true},
		{"/", "", "cross-site", "navigate", false},
		{"/", "", "cross-site", "no-cors", true},
		{"/", "", "cross-site", "websocket", true},
		{"/", "http://evil.example", "cross-site", "navigate", true},
		{"/", "", "same-site", "", false},
	} {
		request := httptest.NewRequest(http.MethodGet, test.path, http.NoBody)
		request.Host = "localhost:80"
		for name, value := range map[string]string{"Origin": test.origin, "Sec-Fetch-Site": test.site, "Sec-Fetch-Mode": test.mode} {
			if value != "" {
				request.Header.Set(name, value)
			}
		}
		if got := page.FromOtherSite(request); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
}

func TestOtherSites(t *testing.T) {
	server := serve(t, &source{})
	for path, want := range map[string]int{"/": http.StatusOK, "/api/log?name=hello": http.StatusForbidden, "/page/app.js": http.StatusForbidden} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Sec-Fetch-Site", "cross-site")
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, response.StatusCode, want)
		}
	}
}
