package controlapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/resolver"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/plugin"
)

var discard = slog.New(slog.DiscardHandler)

// testGuard returns an authorizer that discards audit entries.
func testGuard(path string) *access.Authorizer {
	return access.NewAuthorizer(path, policyFor(config.Roles{}), access.NewAuditor(func(plugin.Event) {}, discard))
}

// policyFor returns the policy of roles that are granted to numeric users.
func policyFor(roles config.Roles) access.Policy {
	p, err := access.NewPolicy(roles)
	if err != nil {
		panic(err)
	}
	return p
}

func named(ptype, name string) plugin.Name {
	return plugin.Name{Type: ptype, Name: name}
}

// recorded is a source with the events and plugins of a test.
type recorded struct {
	plugins  []plugin.Status
	refusals []plugin.Status
	past     []plugin.Event
	live     chan plugin.Event
}

func (r *recorded) Plugins() []plugin.Status {
	return append([]plugin.Status{}, r.plugins...)
}

func (r *recorded) PluginsNamed(name string) []plugin.Status {
	return slices.DeleteFunc(r.Plugins(), func(s plugin.Status) bool { return s.Name != name })
}

func (r *recorded) Refusals() []plugin.Status { return r.refusals }

func (r *recorded) Retry(ptype, name string) error {
	if len(r.plugins) == 0 {
		return pluginruntime.ErrUnknown
	}
	return fmt.Errorf("%w: %s/%s is asleep", pluginruntime.ErrNotWaiting, ptype, name)
}

func (*recorded) Reservation(name plugin.Name) (plugin.Reservation, bool) {
	return plugin.Reservation{Plugin: name, Owner: plugin.Account{UID: 60001}, Until: time.Unix(0, 0)}, name.Name == "kept"
}

func (*recorded) ReleaseName(_ context.Context, _, name string) error {
	if name == "kept" {
		return errors.New("the disk is full")
	}
	return pluginruntime.ErrNotReserved
}

func (r *recorded) Conditions() []plugin.Condition {
	return []plugin.Condition{{Name: "discovery", Message: "bad \xff"}}
}

func (r *recorded) PastEvents() ([]plugin.Event, error) { return r.past, nil }

func (r *recorded) LaunchedAs(string) (plugin.Name, bool) {
	return plugin.Name{}, false
}

func (r *recorded) LastEvents(n int) []plugin.Event { return r.past[max(0, len(r.past)-n):] }

func (r *recorded) Events(ctx context.Context, _ int) <-chan plugin.Event {
	events := make(chan plugin.Event)
	go func() {
		defer close(events)
		for {
			select {
			case e, ok := <-r.live:
				if !ok {
					return
				}
				select {
				case events <- e:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return events
}

func event(seq uint64, ptype string) plugin.Event {
	return plugin.Event{Seq: seq, Time: time.Unix(int64(seq), 0), Kind: plugin.EventRegistered, Type: ptype, Name: "n"}
}

// handlersOf are the handlers by plugin type.
type handlersOf map[string]cache.PluginHandler

func (h handlersOf) All() map[string]cache.PluginHandler { return h }

// registered reports which plugins are in a registry.
type isRegistered func(ptype, name string) bool

func (r isRegistered) Instances(ptype, name string) []dynamicplugins.Instance {
	if !r(ptype, name) {
		return nil
	}
	return make([]dynamicplugins.Instance, 1)
}

type neverReplaced struct{}

func (neverReplaced) AwaitReplaced(context.Context, string, string) error { return nil }

type notReloadable struct{}

func (notReloadable) Reload(context.Context) ([]string, error) {
	return nil, errors.New("nothing to reload")
}

func (notReloadable) Effective() string { return "" }

// testControl returns a control API over the plugins of a test.
func testControl(s Runtime, l Launcher, h handlersOf, r isRegistered) service {
	return service{&API{
		Runtime: s, Launcher: l, Names: resolver.New(s, l, r, h), Handlers: h, Registry: neverReplaced{}, Daemon: notReloadable{}, Logger: discard,
	}}
}

func nothingRegistered(string, string) bool { return false }

// serveTo serves a source over HTTP, without authorization.
func serveTo(t *testing.T, s Runtime) patchbayv1connect.ControlServiceClient {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(patchbayv1connect.NewControlServiceHandler(testControl(s, noneLaunched{}, nil, nothingRegistered)))
	local := httptest.NewServer(mux)
	t.Cleanup(local.Close)
	return patchbayv1connect.NewControlServiceClient(local.Client(), local.URL)
}

func TestWatchEvents(t *testing.T) {
	past := []plugin.Event{event(3, "A"), event(4, "B"), event(5, "A"), event(6, "A")}
	tail := func(n uint32) *uint32 { return &n }
	for name, test := range map[string]struct {
		request *patchbayv1.WatchEventsRequest
		live    []plugin.Event
		want    []uint64
		code    connect.Code
	}{
		"all":               {request: &patchbayv1.WatchEventsRequest{}, want: []uint64{3, 4, 5, 6}},
		"the last two":      {request: &patchbayv1.WatchEventsRequest{Tail: tail(2)}, want: []uint64{5, 6}},
		"none":              {request: &patchbayv1.WatchEventsRequest{Tail: tail(0)}},
		"more than all":     {request: &patchbayv1.WatchEventsRequest{Tail: tail(math.MaxUint32)}, want: []uint64{3, 4, 5, 6}},
		"one type":          {request: &patchbayv1.WatchEventsRequest{Types: []string{"B", "C"}}, want: []uint64{4}},
		"the last of type":  {request: &patchbayv1.WatchEventsRequest{Types: []string{"B"}, Tail: tail(1)}, want: []uint64{4}},
		"one name":          {request: &patchbayv1.WatchEventsRequest{Names: []string{"n"}}, want: []uint64{3, 4, 5, 6}},
		"another name":      {request: &patchbayv1.WatchEventsRequest{Names: []string{"m"}}},
		"follow":            {&patchbayv1.WatchEventsRequest{Follow: true}, []plugin.Event{event(7, "A"), event(8, "B")}, []uint64{3, 4, 5, 6, 7, 8}, connect.CodeUnavailable},
		"follow only":       {&patchbayv1.WatchEventsRequest{Follow: true, Tail: tail(0)}, []plugin.Event{event(7, "A")}, []uint64{7}, connect.CodeUnavailable},
		"follow one type":   {&patchbayv1.WatchEventsRequest{Follow: true, Types: []string{"B"}}, []plugin.Event{event(7, "A"), event(8, "B")}, []uint64{4, 8}, connect.CodeUnavailable},
		"seen twice":        {&patchbayv1.WatchEventsRequest{Follow: true}, []plugin.Event{event(5, "A"), event(6, "A"), event(7, "A")}, []uint64{3, 4, 5, 6, 7}, connect.CodeUnavailable},
		"one is missing":    {&patchbayv1.WatchEventsRequest{Follow: true}, []plugin.Event{event(7, "A"), event(9, "A")}, []uint64{3, 4, 5, 6, 7}, connect.CodeResourceExhausted},
		"one of another":    {&patchbayv1.WatchEventsRequest{Follow: true, Types: []string{"B"}}, []plugin.Event{event(8, "A")}, []uint64{4}, connect.CodeResourceExhausted},
		"resynchronisation": {&patchbayv1.WatchEventsRequest{Follow: true, Tail: tail(0)}, []plugin.Event{{Kind: plugin.EventResync}}, nil, connect.CodeResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			live := make(chan plugin.Event, len(test.live))
			for _, e := range test.live {
				live <- e
			}
			close(live)
			rpc := serveTo(t, &recorded{past: past, live: live})
			stream, err := rpc.WatchEvents(t.Context(), test.request)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			var got []uint64
			for first := true; stream.Receive(); first = false {
				e := stream.Msg().GetEvent()
				if stands := first && test.request.GetFollow(); stands != (e == nil) {
					t.Errorf("message %v, first %t", stream.Msg(), first)
				}
				if e != nil {
					got = append(got, e.GetSeq())
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if err := stream.Err(); (err != nil) != test.request.GetFollow() || err != nil && connect.CodeOf(err) != test.code {
				t.Errorf("the stream ended with %v, want code %v", err, test.code)
			}
		})
	}
}

func TestListPlugins(t *testing.T) {
	rpc := serveTo(t, &recorded{plugins: []plugin.Status{
		{Type: "A", Name: "one", State: plugin.StateRegistered},
		{Type: "A", Name: "two", State: plugin.StateBackoff, Attempts: 2},
		{Type: "B", Name: "one", State: plugin.StateRegistered, SocketPath: "/\xff.sock", Versions: []string{"\xfe"}},
	}})
	for name, test := range map[string]struct {
		request *patchbayv1.ListPluginsRequest
		want    string
	}{
		"all":     {&patchbayv1.ListPluginsRequest{}, "A/one A/two B/one "},
		"type":    {&patchbayv1.ListPluginsRequest{Types: []string{"A"}}, "A/one A/two "},
		"name":    {&patchbayv1.ListPluginsRequest{Names: []string{"one"}}, "A/one B/one "},
		"state":   {&patchbayv1.ListPluginsRequest{States: []string{"backoff", "refused"}}, "A/two "},
		"several": {&patchbayv1.ListPluginsRequest{Types: []string{"A"}, States: []string{"registered"}}, "A/one "},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := rpc.ListPlugins(t.Context(), test.request)
			if err != nil {
				t.Fatal(err)
			}
			names := func(plugins []*patchbayv1.Plugin) (all string) {
				for _, p := range plugins {
					all += p.GetType() + "/" + p.GetName() + " "
				}
				return all
			}
			if got := names(response.GetPlugins()); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			streamed := stream(t, rpc, &patchbayv1.StreamPluginsRequest{
				Types: test.request.GetTypes(), Names: test.request.GetNames(), States: test.request.GetStates(),
			})
			if got := names(streamed[0].GetPlugins()); len(streamed) != 1 || got != test.want || len(streamed[0].GetConditions()) != 1 {
				t.Errorf("streamed %v", streamed)
			}
			if c := response.GetConditions(); len(c) != 1 || c[0].GetStatus() != "degraded" || c[0].GetMessage() != "bad \ufffd" {
				t.Errorf("conditions %v", c)
			}
		})
	}
}

// stream returns the messages of a streamed list.
func stream(t *testing.T, rpc patchbayv1connect.ControlServiceClient, request *patchbayv1.StreamPluginsRequest) (all []*patchbayv1.StreamPluginsResponse) {
	t.Helper()
	s, err := rpc.StreamPlugins(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
		all = append(all, s.Msg())
	}
	if s.Err() != nil || len(all) == 0 {
		t.Fatalf("%d messages, then %v", len(all), s.Err())
	}
	return all
}

// TestLargeList checks that no part of a streamed list is too large for a gRPC message, and none is missing, if plugins announce more than
// that.
func TestLargeList(t *testing.T) {
	const n = 3000
	all := make([]plugin.Status, n)
	for i := range all {
		all[i] = plugin.Status{Type: "T", Name: strings.Repeat("n", 4090) + fmt.Sprint(1000+i)}
	}
	rpc := serveTo(t, &recorded{plugins: all})
	got := 0
	for i, part := range stream(t, rpc, &patchbayv1.StreamPluginsRequest{}) {
		if size := proto.Size(part); size > 1<<20+8<<10 || len(part.GetConditions()) != map[bool]int{true: 1}[i == 0] {
			t.Errorf("part %d has %d bytes, and %d conditions", i, size, len(part.GetConditions()))
		}
		for _, p := range part.GetPlugins() {
			if want := fmt.Sprint(1000 + got); !strings.HasSuffix(p.GetName(), want) {
				t.Fatalf("plugin %d is %s", got, p.GetName()[4000:])
			}
			got++
		}
	}
	if got != n {
		t.Errorf("%d plugins of %d", got, n)
	}
}

// TestSharedViews checks that callers that arrive while a view is computed share the next view.
func TestSharedViews(t *testing.T) {
	var made atomic.Int64
	began, goOn := make(chan struct{}), make(chan struct{})
	views, count := &shared[int64]{}, func() int64 {
		n := made.Add(1)
		if n == 1 {
			close(began)
			<-goOn
		}
		return n
	}
	var all sync.WaitGroup
	all.Go(func() { views.get(count) })
	<-began
	const callers = 100
	seen := make(chan int64, callers)
	var arrived sync.WaitGroup
	arrived.Add(callers)
	for range callers {
		all.Go(func() {
			arrived.Done()
			seen <- views.get(count)
		})
	}
	arrived.Wait() // otherwise most callers may arrive after the computation
	for waits := false; !waits; runtime.Gosched() {
		views.mu.Lock()
		waits = views.next != nil
		views.mu.Unlock()
	}
	close(goOn)
	all.Wait()
	close(seen)
	for n := range seen {
		if n < 2 {
			t.Errorf("somebody got view %d, which is older than the question", n)
		}
	}
	if n := views.get(count); n > callers/2 {
		t.Errorf("%d views were made", n)
	}
}

func TestInvalidArguments(t *testing.T) {
	rpc := serveTo(t, &recorded{})
	_, get := rpc.GetPlugin(t.Context(), &patchbayv1.GetPluginRequest{Type: "T"})
	_, wait := rpc.WaitForPlugin(t.Context(), &patchbayv1.WaitForPluginRequest{
		Type: "T", For: patchbayv1.WaitFor_WAIT_FOR_REGISTERED,
	})
	_, goal := rpc.WaitForPlugin(t.Context(), &patchbayv1.WaitForPluginRequest{Type: "T", Name: "n"})
	for name, err := range map[string]error{"get without a name": get, "wait without a name": wait, "wait for nothing": goal} {
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestGoals(t *testing.T) {
	status := func(state plugin.State, instance string) plugin.Status {
		return plugin.Status{State: state, Instance: instance}
	}
	for name, test := range map[string]struct {
		instances                []plugin.Status
		registered, deregistered bool
	}{
		"unknown":              {nil, false, true},
		"registered":           {[]plugin.Status{status(plugin.StateRegistered, "i")}, true, false},
		"restored":             {[]plugin.Status{status(plugin.StateRestored, "i")}, false, false},
		"never registered":     {[]plugin.Status{status(plugin.StateBackoff, "")}, false, true},
		"newer one on its way": {[]plugin.Status{status(plugin.StateConnecting, ""), status(plugin.StateRegistered, "i")}, true, false},
		"survivor validated":   {[]plugin.Status{status(plugin.StateValidating, "i")}, false, false},
		"handler is told":      {[]plugin.Status{status(plugin.StateDeregistering, "")}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := registered(test.instances); ok != test.registered {
				t.Errorf("registered: %t", ok)
			}
			if _, ok := deregistered(test.instances); ok != test.deregistered {
				t.Errorf("deregistered: %t", ok)
			}
		})
	}
}

func TestEnded(t *testing.T) {
	stopping, stop := context.WithCancelCause(t.Context())
	stop(server.ErrStopping)
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	for want, ctx := range map[connect.Code]context.Context{
		connect.CodeUnavailable:      stopping,
		connect.CodeDeadlineExceeded: late,
		connect.CodeCanceled:         gone,
	} {
		if got := connect.CodeOf(ended(ctx)); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if err := ended(t.Context()); !errors.Is(err, server.ErrStopping) {
		t.Errorf("a source that ran dry: got %v", err)
	}
	err := waitEnded(late, "the plugin is in state backoff")
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded || !errors.As(err, new(*connect.Error)) {
		t.Errorf("got %v", err)
	}
}
