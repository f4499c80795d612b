package controlapi

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/quota"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// slow blocks in its writes until it is released.
type slow struct {
	*httptest.ResponseRecorder

	begin func()
	goOn  <-chan struct{}
}

func (s *slow) Write(b []byte) (int, error) {
	s.begin()
	<-s.goOn
	return s.ResponseRecorder.Write(b)
}

// TestListsAreBounded checks the bounds for users who request everything, in one message or a stream, and do not read.
func TestListsAreBounded(t *testing.T) {
	t.Run("message", func(t *testing.T) {
		testLists(t, patchbayv1connect.ControlServiceListPluginsProcedure, "application/proto", nil, http.StatusTooManyRequests)
	})
	t.Run("refusals", func(t *testing.T) {
		testLists(t, patchbayv1connect.ControlServiceListRefusalsProcedure, "application/proto", nil, http.StatusTooManyRequests)
	})
	t.Run("one plugin", func(t *testing.T) {
		request, err := proto.Marshal(&patchbayv1.GetPluginRequest{Type: "T", Name: "n"})
		if err != nil {
			t.Fatal(err)
		}
		testLists(t, patchbayv1connect.ControlServiceGetPluginProcedure, "application/proto", request, http.StatusTooManyRequests)
	})
	t.Run("stream", func(t *testing.T) {
		testLists(t, patchbayv1connect.ControlServiceStreamPluginsProcedure, "application/connect+proto", make([]byte, 5), http.StatusOK)
	})
}

// TestPastEventsAreBounded checks the same for past events, of which there are many more than in memory.
func TestPastEventsAreBounded(t *testing.T) {
	testLists(t, patchbayv1connect.ControlServiceWatchEventsProcedure, "application/connect+proto", make([]byte, 5), http.StatusOK)
}

// testLists calls a procedure with a body; code is that of a refusal, which is in the last message of a stream.
func testLists(t *testing.T, procedure, contentType string, body []byte, code int) {
	const smaller = 8                          // the bounds and the answers; those of a stream still have two messages
	all := make([]plugin.Status, 2500/smaller) // 10 MiB / smaller
	for i := range all {
		all[i] = plugin.Status{Type: "T", Name: "n", Version: strings.Repeat("v", 4090) + fmt.Sprint(1000+i)}
	}
	past := make([]plugin.Event, len(all))
	for i, p := range all {
		past[i].Seq, past[i].Type, past[i].Message = uint64(i+1), p.Type, p.Version
	}
	refused := prometheus.NewCounter(prometheus.CounterOpts{Name: "refused"})
	l := newLists(1, refused, discard)
	l.pool = quota.New(quota.Limits{User: maxUserLists / smaller, Total: maxLists / smaller}, limits.Exempt(1))
	refusals := slices.Clone(all)
	for i := range refusals {
		refusals[i].Name = "r"
	}
	source := &recorded{plugins: all, refusals: refusals, past: past}
	g := testGuard("")
	g.Replace(policyFor(config.Roles{Read: config.Members{Users: []string{"1", "1000", "1001", "1002"}}}))
	c := testControl(source, noneLaunched{}, nil, nothingRegistered)
	c.Authorizer, c.lists = g, l
	handler := c.handler()
	ask := func(uid uint32, w http.ResponseWriter) {
		r := httptest.NewRequest(http.MethodPost, procedure, bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		ctx := access.WithCaller(r.Context(), access.NewCaller(sock.Credentials{UID: uid}))
		handler.ServeHTTP(w, r.WithContext(ctx))
	}
	goOn := make(chan struct{})
	var asking, begun sync.WaitGroup
	hold := func(uid uint32, count int) {
		begun.Add(count)
		for range count {
			asking.Go(func() { ask(uid, &slow{httptest.NewRecorder(), sync.OnceFunc(begun.Done), goOn}) })
		}
		begun.Wait()
	}
	answer := func(uid uint32, refused bool) {
		t.Helper()
		w := httptest.NewRecorder()
		ask(uid, w)
		want := http.StatusOK
		if refused {
			want = code
		}
		if says := strings.Contains(w.Body.String(), "resource_exhausted"); w.Code != want || says != refused {
			t.Errorf("user %d has the answer %d, want %d: %.200s", uid, w.Code, want, w.Body)
		}
	}
	hold(1000, 3)
	answer(1000, true)  // 40 MiB / smaller
	answer(1001, false) // of another user
	hold(1001, 1)
	answer(1002, false)
	hold(0, 10) // root and the daemon's user are not counted
	hold(1, 10)
	answer(1002, false)
	if n := testutil.ToFloat64(refused); n != 1 {
		t.Errorf("%v were counted", n)
	}
	close(goOn)
	asking.Wait()
	answer(1000, false)
	if n := l.pool.Sum(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// TestSnapshotsCount checks that the snapshot for a watcher of the fleet counts until all of it is sent.
func TestSnapshotsCount(t *testing.T) {
	l := newLists(1, prometheus.NewCounter(prometheus.CounterOpts{Name: "refused"}), discard)
	node := &fleet.Node{Name: "a"}
	large := fleet.Instance{Node: node, PluginRecord: &fleetv1.PluginRecord{Name: strings.Repeat("n", 1<<20)}}
	snapshot := fleet.Snapshot{Nodes: []*fleet.Node{node}, Plugins: []fleet.Instance{large}}
	handler := l.handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		messages := 0
		err := sendSnapshot(r.Context(), snapshot, true, func(*patchbayv1.WatchFleetResponse) error {
			if n := l.pool.Held(1000); n < 1<<20 {
				t.Errorf("%d bytes count", n)
			}
			messages++
			return nil
		})
		if err != nil || messages != 3 {
			t.Errorf("%d messages are sent, %v", messages, err)
		}
		if n := l.pool.Held(1000); n != 0 {
			t.Errorf("%d bytes count after all is sent", n)
		}
		l.pool.Add(1000, maxUserLists)
		if err := sendSnapshot(r.Context(), snapshot, true, nil); connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("a further one: %v", err)
		}
	}))
	r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
	handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(access.WithCaller(r.Context(), access.NewCaller(sock.Credentials{UID: 1000}))))
}
