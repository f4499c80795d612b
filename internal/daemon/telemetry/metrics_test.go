package telemetry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/launch/pluginlog"
	"github.com/patchbay-dev/patchbay/plugin"
)

type handlerTypes []string

func (h handlerTypes) Has(ptype string) bool { return slices.Contains(h, ptype) }

// fixed is a source of metrics that does not change.
type fixed struct{}

func (fixed) Plugins() []plugin.Status {
	return []plugin.Status{
		{Type: "T", Name: "a", State: plugin.StateRegistered}, {Type: "T", Name: "b", State: plugin.StateRegistered},
		{Type: "Forged\n", Name: "c", State: plugin.StateRefused}, {State: plugin.StateConnecting},
	}
}

func (fixed) Conditions() []plugin.Condition {
	return []plugin.Condition{{Name: "configuration", OK: true}, {Name: "discovery"}}
}

type fixedLaunched struct{}

func (fixedLaunched) Plugins() []plugin.LaunchStatus {
	return []plugin.LaunchStatus{{Name: "hello", State: plugin.StateRunning, Restarts: 2}}
}

func (fixedLaunched) Log(string) (plugin.Log, error) {
	return pluginlog.New("", nil, 0), nil
}

func newTestMetrics(t *testing.T) *Metrics {
	m := NewMetrics("v1", "c", handlerTypes{"T"})
	m.Watch(fixed{}, fixedLaunched{}, t.TempDir())
	o := m.Observer()
	o.Event(plugin.Event{Kind: plugin.EventUnreachable, Type: "T"})
	o.Attempt(plugin.Attempt{Type: "T", Result: plugin.ResultRegistered, Duration: time.Millisecond})
	o.Dispense("T", nil)
	o.Dispense("csi-node", nil)
	o.Dispense("T", fmt.Errorf("%w", dynamicplugins.ErrUnreachable))
	o.Dispense("csi-node", fmt.Errorf("%w", dynamicplugins.ErrNotFound))
	o.Dispense("X", fmt.Errorf("%w", dynamicplugins.ErrNoDispenser))
	o.FileEventsLost()
	o.Resync()
	m.stateWrites.WithLabelValues("ok").Observe(1)
	ctx := m.rpcs.TagRPC(context.Background(), &stats.RPCTagInfo{FullMethodName: "/s/m"})
	m.rpcs.HandleRPC(ctx, &stats.End{Error: status.Error(codes.Canceled, "")})
	return m
}

func TestMetricsAreWellNamed(t *testing.T) {
	m := newTestMetrics(t)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, f := range families {
		name := f.GetName()
		if !strings.HasPrefix(name, "patchbay_") && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s does not begin with patchbay_", name)
		}
	}
}

func TestMetrics(t *testing.T) {
	m := newTestMetrics(t)
	err := testutil.GatherAndCompare(m.registry, strings.NewReader(`
# HELP patchbay_condition_degraded Whether a condition of the daemon is degraded: 1 if so, 0 if not.
# TYPE patchbay_condition_degraded gauge
patchbay_condition_degraded{condition="configuration"} 0
patchbay_condition_degraded{condition="discovery"} 1
# HELP patchbay_dispenses_total Requests for clients of plugins and for connections to them, by result.
# TYPE patchbay_dispenses_total counter
patchbay_dispenses_total{result="error",type="other"} 1
patchbay_dispenses_total{result="not_found",type="other"} 1
patchbay_dispenses_total{result="ok",type="T"} 1
patchbay_dispenses_total{result="ok",type="csi-node"} 1
patchbay_dispenses_total{result="unreachable",type="T"} 1
# HELP patchbay_launched_plugin_restarts_total How often a plugin of the catalogue was restarted since somebody started it.
# TYPE patchbay_launched_plugin_restarts_total counter
patchbay_launched_plugin_restarts_total{plugin="hello"} 2
# HELP patchbay_plugin_events_total Events of plugins, by kind; unreachable means that a registered plugin died or could not be registered again.
# TYPE patchbay_plugin_events_total counter
patchbay_plugin_events_total{kind="unreachable",type="T"} 1
# HELP patchbay_plugin_rpcs_total Completed calls to plugins, by method and gRPC status code.
# TYPE patchbay_plugin_rpcs_total counter
patchbay_plugin_rpcs_total{code="Canceled",method="/s/m"} 1
# HELP patchbay_plugins Known instances of plugins, by state, and by health: healthy, progressing or attention.
# TYPE patchbay_plugins gauge
patchbay_plugins{health="progressing",state="connecting",type="unknown"} 1
patchbay_plugins{health="attention",state="refused",type="other"} 1
patchbay_plugins{health="healthy",state="registered",type="T"} 2
`), "patchbay_condition_degraded", "patchbay_dispenses_total", "patchbay_launched_plugin_restarts_total", "patchbay_plugin_events_total",
		"patchbay_plugin_rpcs_total", "patchbay_plugins")
	if err != nil {
		t.Error(err)
	}
}

func TestMethodLabelsAreBounded(t *testing.T) {
	m := NewMetrics("", "", nil).rpcs
	for _, named := range []string{"/s/none", "/s/\xff"} {
		if got := m.label(named, codes.Unimplemented); got != labelOther {
			t.Errorf("%q, which nobody has, has label %q", named, got)
		}
	}
	if got := m.label("/s/\xff", codes.OK); got != labelOther {
		t.Errorf("a method that is not UTF-8 has label %q", got)
	}
	for i := range 2 * maxMethods {
		m.label(fmt.Sprint("/s/", i), codes.OK)
	}
	for _, code := range []codes.Code{codes.OK, codes.Unimplemented} {
		if got := m.label("/s/0", code); got != "/s/0" {
			t.Errorf("a known method has label %q", got)
		}
	}
	if got := m.label("/s/new", codes.OK); got != labelOther {
		t.Errorf("one too many has label %q", got)
	}
	if len(m.methods.known) != maxMethods {
		t.Errorf("%d methods are kept, want %d", len(m.methods.known), maxMethods)
	}
}

func TestMetricsPage(t *testing.T) {
	m := newTestMetrics(t)
	request := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	request.Host = "localhost:1"
	response := httptest.NewRecorder()
	Pages{Metrics: m.Handler()}.ServeHTTP(response, request)
	body, err := io.ReadAll(response.Body)
	if err != nil || response.Code != http.StatusOK || !strings.Contains(string(body), "patchbay_build_info{") {
		t.Errorf("%d, %v: %.200s", response.Code, err, body)
	}
}
