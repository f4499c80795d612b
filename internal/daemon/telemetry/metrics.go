// Package telemetry provides the daemon's metrics and traces, and the HTTP server for /livez, /readyz, /metrics and the status page, which
// is in package page.
package telemetry

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Labels that replace values chosen by plugins or callers.
const (
	labelOther   = "other"   // a plugin type without a handler, or one of too many values
	labelUnknown = "unknown" // the type of a plugin is not known yet
)

// Metrics has the daemon's metrics. The number of label values is bounded: they come from the configuration or from fixed lists, and only
// the first RPC methods, nodes and locks that occur have labels of their own.
type Metrics struct {
	registry *prometheus.Registry
	handlers Handlers

	// Served counts calls from other nodes, and Called calls to other nodes.
	Served, Called *PeerCalls
	// ConnsRefused counts connections that were closed immediately. ListsRefused and CallsLimited count responses and calls beyond a bound.
	ConnsRefused *prometheus.CounterVec
	ListsRefused prometheus.Counter
	CallsLimited *prometheus.CounterVec

	registrations  *prometheus.HistogramVec
	events         *prometheus.CounterVec
	refusals       *prometheus.CounterVec
	fileEventsLost prometheus.Counter
	resyncs        prometheus.Counter
	dispenses      *prometheus.CounterVec
	rpcs           *rpcMetrics
	stateWrites    *prometheus.HistogramVec
}

// Handlers has the handlers of plugin types.
type Handlers interface {
	Has(ptype string) bool
}

// NewMetrics returns the metrics of a daemon with the given build.
func NewMetrics(version, commit string, handlers Handlers) *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	made := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return made.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	// Each bucket is four times as large as the previous one.
	histogram := func(name, help string, first float64, labels ...string) *prometheus.HistogramVec {
		buckets := prometheus.ExponentialBuckets(first, 4, 10)
		return made.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	made.NewGauge(prometheus.GaugeOpts{
		Name:        "patchbay_build_info",
		Help:        "The build that runs; its value is 1.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit, "go_version": runtime.Version()},
	}).Set(1)
	return &Metrics{
		registry: registry,
		handlers: handlers,
		registrations: histogram("patchbay_registration_duration_seconds",
			"How long attempts to register a plugin took, by result. A first attempt counts from when the socket was seen.",
			0.0005, "type", "result"),
		events: counter("patchbay_plugin_events_total",
			"Events of plugins, by kind; unreachable means that a registered plugin died or could not be registered again.",
			"type", "kind"),
		refusals: counter("patchbay_refusals_total",
			"How often something was refused because it is not trusted or exceeds a limit, by reason.", "reason"),
		fileEventsLost: counter("patchbay_file_events_lost_total",
			"How often the system lost file events of the plugin directories; a scan makes up for them.").WithLabelValues(),
		resyncs: counter("patchbay_event_resyncs_total",
			"How often a subscriber was too slow, lost events and had to list the plugins again.").WithLabelValues(),
		dispenses: counter("patchbay_dispenses_total",
			"Requests for clients of plugins and for connections to them, by result.", "type", "result"),
		ConnsRefused: counter("patchbay_connections_refused_total",
			"Connections that were closed at once because the user, or all users together, had too many open, by socket and reason.",
			"socket", "reason"),
		ListsRefused: counter("patchbay_lists_refused_total",
			"Answers of the control API that were refused because the user, or all users together, had too many unread ones.").WithLabelValues(),
		CallsLimited: counter("patchbay_calls_limited_total",
			"How often a call of a plugin, or a request to the control API, got no more memory for what waits in it, so that it is slower or "+
				"refused (user, total), was refused because too many were in progress (userCalls, calls), or was canceled by a caller that "+
				"cancels too many, which is read from more slowly (connCancels, userCancels, cancels).", "reason"),
		rpcs: &rpcMetrics{
			methods: &labels{most: maxMethods},
			calls: counter("patchbay_plugin_rpcs_total", "Completed calls to plugins, by method and gRPC status code.", "method",
				"code"),
			durations: histogram("patchbay_plugin_rpc_duration_seconds", "How long calls to plugins took, by method.", 0.0002, "method"),
		},
		Served: newPeerCalls(counter("patchbay_fleet_served_calls_total",
			"Calls from other nodes that have ended, or were denied, by the first name in the caller's certificate and gRPC status code.",
			"caller", "code")),
		Called: newPeerCalls(counter("patchbay_fleet_calls_total",
			"Calls to plugins of other nodes that have ended, by node and gRPC status code.", "node", "code")),
		stateWrites: histogram("patchbay_state_write_duration_seconds",
			"How long it took to make changes durable in the state file, by result.", 0.0001, "result"),
	}
}

// Observer returns an observer with which a runtime updates the metrics.
func (m *Metrics) Observer() pluginruntime.Observer {
	return pluginruntime.Observer{
		Event: func(e plugin.Event) {
			m.events.WithLabelValues(m.typeLabel(e.Type), string(e.Kind)).Inc()
		},
		Attempt: func(a plugin.Attempt) {
			m.registrations.WithLabelValues(m.typeLabel(a.Type), string(a.Result)).Observe(a.Duration.Seconds())
		},
		StatsHandlers:  []stats.Handler{m.rpcs},
		Refused:        func(reason trust.Reason) { m.refusals.WithLabelValues(string(reason)).Inc() },
		FileEventsLost: m.fileEventsLost.Inc,
		Resync:         m.resyncs.Inc,
		CallsLimited:   func(reason string) { m.CallsLimited.WithLabelValues(reason).Inc() },
		Dispense: func(ptype string, err error) {
			if err != nil {
				ptype = m.typeLabel(ptype) // the caller may have chosen it; else it is registered
			}
			m.dispenses.WithLabelValues(ptype, dispenseResult(err)).Inc()
		},
	}
}

// Plugins are the plugins and conditions of a daemon.
type Plugins interface {
	Conditions
	Plugins() []plugin.Status
}

// Launched are the plugins of the catalogue.
type Launched interface {
	Plugins() []plugin.LaunchStatus
	Log(name string) (plugin.Log, error)
}

// Watch adds the metrics of plugins, conditions and the state file.
func (m *Metrics) Watch(source Plugins, launched Launched, statePath string) {
	m.registry.MustRegister(&collector{metrics: m, source: source, launched: launched, statePath: statePath})
}

// Handler serves the metrics to Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// WriteText writes all metrics in the text format of Prometheus.
func (m *Metrics) WriteText(b *bytes.Buffer) error {
	families, err := m.registry.Gather()
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(b, family); err != nil {
			return err
		}
	}
	return err
}

func (m *Metrics) typeLabel(ptype string) string {
	switch {
	case ptype == "":
		return labelUnknown
	case m.handlers.Has(ptype):
		return ptype
	}
	return labelOther
}

func dispenseResult(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, dynamicplugins.ErrNotFound):
		return "not_found"
	case errors.Is(err, dynamicplugins.ErrUnreachable):
		return "unreachable"
	}
	return "error"
}

var _ dynamicplugins.BatchStorage = measuredState{}

// Storage returns a store whose writes are measured.
func (m *Metrics) Storage(s *boltstate.Store) dynamicplugins.StateStorage {
	return measuredState{s, m.stateWrites}
}

type measuredState struct {
	*boltstate.Store
	writes *prometheus.HistogramVec
}

func (s measuredState) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	return s.measure(func() error { return s.Store.PutDynamicPluginRegistryState(state) })
}

func (s measuredState) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	return s.measure(func() error { return s.Store.PutDynamicPluginChange(change) })
}

func (s measuredState) PutDynamicPluginChanges(changes []*dynamicplugins.PluginChange) (errs []error) {
	_ = s.measure(func() error {
		errs = s.Store.PutDynamicPluginChanges(changes)
		return errors.Join(errs...)
	})
	return errs
}

func (s measuredState) measure(write func() error) error {
	began := time.Now()
	err := write()
	result := "ok"
	if err != nil {
		result = "error"
	}
	s.writes.WithLabelValues(result).Observe(time.Since(began).Seconds())
	return err
}

// collector collects the metrics of states. It is a [prometheus.Collector].
type collector struct {
	metrics   *Metrics
	source    Plugins
	launched  Launched
	statePath string
}

var (
	pluginsDesc = prometheus.NewDesc("patchbay_plugins",
		"Known instances of plugins, by state, and by health: healthy, progressing or attention.", []string{"type", "state", "health"}, nil)
	degradedDesc = prometheus.NewDesc("patchbay_condition_degraded",
		"Whether a condition of the daemon is degraded: 1 if so, 0 if not.", []string{"condition"}, nil)
	stateSizeDesc = prometheus.NewDesc("patchbay_state_size_bytes",
		"The size of the state file.", nil, nil)
	launchedDesc = prometheus.NewDesc("patchbay_launched_plugin_state",
		"The state of a plugin of the catalogue: 1 for its current state.", []string{"plugin", "state"}, nil)
	restartsDesc = prometheus.NewDesc("patchbay_launched_plugin_restarts_total",
		"How often a plugin of the catalogue was restarted since somebody started it.", []string{"plugin"}, nil)
	logLinesDesc = prometheus.NewDesc("patchbay_launched_plugin_log_lines_total",
		"Lines that a launched plugin printed or logged.", []string{"plugin"}, nil)
	logCutDesc = prometheus.NewDesc("patchbay_launched_plugin_log_lines_cut_total",
		"Lines of a launched plugin that were cut because they were too long.", []string{"plugin"}, nil)
	logDroppedDesc = prometheus.NewDesc("patchbay_launched_plugin_log_lines_dropped_total",
		"Lines of a launched plugin that were dropped because they exceeded its rate limit.", []string{"plugin"}, nil)
)

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		pluginsDesc, degradedDesc, stateSizeDesc, launchedDesc, restartsDesc, logLinesDesc, logCutDesc, logDroppedDesc,
	} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	type group struct{ ptype, state, health string }
	plugins := map[group]int{}
	for _, s := range c.source.Plugins() {
		plugins[group{c.metrics.typeLabel(s.Type), string(s.State), string(s.Health().State)}]++
	}
	for g, n := range plugins {
		gauge(ch, pluginsDesc, float64(n), g.ptype, g.state, g.health)
	}
	for _, condition := range c.source.Conditions() {
		gauge(ch, degradedDesc, oneIf(!condition.OK), condition.Name)
	}
	if info, err := os.Stat(c.statePath); err == nil {
		gauge(ch, stateSizeDesc, float64(info.Size()))
	}
	for _, s := range c.launched.Plugins() {
		gauge(ch, launchedDesc, 1, s.Name, string(s.State))
		counter(ch, restartsDesc, uint64(max(s.Restarts, 0)), s.Name)
		log, err := c.launched.Log(s.Name)
		if err != nil {
			continue // a reload has just removed the plugin
		}
		lines := log.Stats()
		counter(ch, logLinesDesc, lines.Lines, s.Name)
		counter(ch, logCutDesc, lines.Cut, s.Name)
		counter(ch, logDroppedDesc, lines.Dropped, s.Name)
	}
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, value uint64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// labels bounds the values of a label: only the first ones that occur are used.
type labels struct {
	most int

	mu    sync.RWMutex
	known map[string]bool
}

func (l *labels) has(value string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.known[value]
}

// of returns the value, or labelOther if there are too many.
func (l *labels) of(value string) string {
	if l.has(value) {
		return value
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known[value] && len(l.known) >= l.most {
		return labelOther
	}
	if l.known == nil {
		l.known = map[string]bool{}
	}
	l.known[value] = true
	return value
}

// maxMethods bounds how many RPC methods have a label, because callers choose the names.
const maxMethods = 256

// rpcMetrics counts the calls on the shared connections to plugins. It is a [stats.Handler].
type rpcMetrics struct {
	calls     *prometheus.CounterVec
	durations *prometheus.HistogramVec
	methods   *labels
}

type rpcMethod struct{}

func (m *rpcMetrics) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, rpcMethod{}, info.FullMethodName)
}

func (m *rpcMetrics) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok {
		return
	}
	method, _ := ctx.Value(rpcMethod{}).(string)
	code := status.Code(end.Error)
	method = m.label(method, code)
	m.calls.WithLabelValues(method, codeLabel(code)).Inc()
	m.durations.WithLabelValues(method).Observe(end.EndTime.Sub(end.BeginTime).Seconds())
}

func (m *rpcMetrics) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (m *rpcMetrics) HandleConn(context.Context, stats.ConnStats) {}

// codeLabel returns the label of a status code. Codes that gRPC does not define share a label, because a plugin may return any number.
func codeLabel(code codes.Code) string {
	if code > codes.Unauthenticated {
		return labelOther
	}
	return code.String()
}

// label returns the label of a method: its name, or labelOther if there are too many names, or the name is new and the plugin does not
// implement it.
func (m *rpcMetrics) label(method string, code codes.Code) string {
	if !m.methods.has(method) && (code == codes.Unimplemented || !utf8.ValidString(method)) { // a label must be UTF-8
		return labelOther
	}
	return m.methods.of(method)
}
