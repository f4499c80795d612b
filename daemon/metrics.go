package daemon

import (
	"errors"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// The labels for what would else let a plugin or a caller make a label of its own.
const (
	labelOther   = "other"   // a plugin type that no handler is configured for, or one method too many
	labelUnknown = "unknown" // a plugin that has not said its type
)

// metrics are what the daemon counts and measures. Labels have values from the configuration or from fixed lists, except for RPC methods,
// of which only the first maxMethods are told apart.
type metrics struct {
	registry *prometheus.Registry
	// handled says whether a plugin type is one that a handler is configured for.
	handled func(ptype string) bool

	registrations  *prometheus.HistogramVec
	events         *prometheus.CounterVec
	refusals       *prometheus.CounterVec
	fileEventsLost prometheus.Counter
	resyncs        prometheus.Counter
	dispenses      *prometheus.CounterVec
	connsRefused   *prometheus.CounterVec
	rpcs           *rpcMetrics
	stateWrites    *prometheus.HistogramVec
}

func newMetrics(build Build, handled func(ptype string) bool) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		handled:  handled,
		registrations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "patchbay_registration_duration_seconds",
			Help:    "How long attempts to register a plugin took, the first one of each from when its socket was seen, by result.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"type", "result"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "patchbay_plugin_events_total",
			Help: "Events of plugins, by kind; unreachable is the death of a registered plugin, or that it could not be registered again.",
		}, []string{"type", "kind"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "patchbay_refusals_total",
			Help: "How often something was refused because it is not trusted, by reason.",
		}, []string{"reason"}),
		fileEventsLost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "patchbay_file_events_lost_total",
			Help: "How often the system lost file events of the plugin directories, which a scan makes up for.",
		}),
		resyncs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "patchbay_event_resyncs_total",
			Help: "How often a subscriber of events was too slow, lost some and had to look anew.",
		}),
		dispenses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "patchbay_dispenses_total",
			Help: "Clients of plugins and connections to them that were asked for, by outcome.",
		}, []string{"type", "result"}),
		connsRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "patchbay_connections_refused_total",
			Help: "Connections that were closed at once because the user, or all users in total, had too many open, by socket and reason.",
		}, []string{"socket", "reason"}),
		rpcs: newRPCMetrics(),
		stateWrites: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "patchbay_state_write_duration_seconds",
			Help:    "How long changes took until they were durable in the state file, by result.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"result"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "patchbay_build_info",
		Help:        "The build that runs; its value is 1.",
		ConstLabels: prometheus.Labels{"version": build.Version, "commit": build.Commit, "go_version": runtime.Version()},
	})
	info.Set(1)
	m.registry.MustRegister(info, m.registrations, m.events, m.refusals, m.fileEventsLost, m.resyncs, m.dispenses, m.connsRefused,
		m.rpcs.calls, m.rpcs.durations, m.stateWrites, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observer returns what has the runtime counted.
func (m *metrics) observer() patchbay.Observer {
	return patchbay.Observer{
		Event: func(e reconciler.Event) {
			m.events.WithLabelValues(m.typeLabel(e.Type), string(e.Kind)).Inc()
		},
		Attempt: func(a reconciler.Attempt) {
			m.registrations.WithLabelValues(m.typeLabel(a.Type), string(a.Result)).Observe(a.Duration.Seconds())
		},
		DialOptions:    []grpc.DialOption{grpc.WithStatsHandler(m.rpcs)},
		Refused:        func(reason trust.Reason) { m.refusals.WithLabelValues(string(reason)).Inc() },
		FileEventsLost: m.fileEventsLost.Inc,
		Resync:         m.resyncs.Inc,
		Dispense: func(ptype string, err error) {
			if err != nil {
				ptype = m.typeLabel(ptype) // maybe the caller's own word; else it is a type or role that is registered
			}
			m.dispenses.WithLabelValues(ptype, dispenseResult(err)).Inc()
		},
	}
}

// watch has what can be counted when it is asked for collected from the runtime.
func (m *metrics) watch(source metricsSource, launched launched, statePath string) {
	m.registry.MustRegister(&collector{metrics: m, source: source, launched: launched, statePath: statePath})
}

// handler answers GET /metrics.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

func (m *metrics) typeLabel(ptype string) string {
	switch {
	case ptype == "":
		return labelUnknown
	case m.handled(ptype):
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

// measuredState is a state storage whose writes are measured.
type measuredState struct {
	storage interface {
		dynamicplugins.StateStorage
		dynamicplugins.ChangeStorage
	}
	writes *prometheus.HistogramVec
}

func (s measuredState) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	return s.storage.GetDynamicPluginRegistryState()
}

func (s measuredState) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	return s.measure(func() error { return s.storage.PutDynamicPluginRegistryState(state) })
}

func (s measuredState) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	return s.measure(func() error { return s.storage.PutDynamicPluginChange(change) })
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

// metricsSource is what a [collector] looks at.
type metricsSource interface {
	Plugins() []patchbay.PluginStatus
	Conditions() []patchbay.Condition
}

// collector makes the metrics that are states.
type collector struct {
	metrics   *metrics
	source    metricsSource
	launched  launched
	statePath string
}

var (
	pluginsDesc = prometheus.NewDesc("patchbay_plugins",
		"Instances of plugins that are known, by state.", []string{"type", "state"}, nil)
	degradedDesc = prometheus.NewDesc("patchbay_condition_degraded",
		"Whether a condition of the daemon is degraded: 1 if so, 0 if not.", []string{"condition"}, nil)
	stateSizeDesc = prometheus.NewDesc("patchbay_state_size_bytes",
		"The size of the state file.", nil, nil)
	launchedDesc = prometheus.NewDesc("patchbay_launched_plugin_state",
		"The state of a plugin of the catalogue: 1 for the one that it is in.", []string{"plugin", "state"}, nil)
	restartsDesc = prometheus.NewDesc("patchbay_launched_plugin_restarts_total",
		"How often a plugin of the catalogue was started again since somebody started it.", []string{"plugin"}, nil)
	logLinesDesc = prometheus.NewDesc("patchbay_launched_plugin_log_lines_total",
		"Lines that a launched plugin printed or logged.", []string{"plugin"}, nil)
	logCutDesc = prometheus.NewDesc("patchbay_launched_plugin_log_lines_cut_total",
		"Lines of a launched plugin that were too long and were cut.", []string{"plugin"}, nil)
	logDroppedDesc = prometheus.NewDesc("patchbay_launched_plugin_log_lines_dropped_total",
		"Lines of a launched plugin above its rate limit, which were not kept.", []string{"plugin"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		pluginsDesc, degradedDesc, stateSizeDesc, launchedDesc, restartsDesc, logLinesDesc, logCutDesc, logDroppedDesc,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	type group struct{ ptype, state string }
	plugins := map[group]int{}
	for _, s := range c.source.Plugins() {
		plugins[group{c.metrics.typeLabel(s.Type), string(s.State)}]++
	}
	for g, n := range plugins {
		gauge(pluginsDesc, float64(n), g.ptype, g.state)
	}
	for _, condition := range c.source.Conditions() {
		degraded := 0.0
		if !condition.OK {
			degraded = 1
		}
		gauge(degradedDesc, degraded, condition.Name)
	}
	if info, err := os.Stat(c.statePath); err == nil {
		gauge(stateSizeDesc, float64(info.Size()))
	}
	c.collectLaunched(ch)
}

func (c *collector) collectLaunched(ch chan<- prometheus.Metric) {
	for _, s := range c.launched.Plugins() {
		counter := func(d *prometheus.Desc, value uint64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), s.Name)
		}
		ch <- prometheus.MustNewConstMetric(launchedDesc, prometheus.GaugeValue, 1, s.Name, string(s.State))
		counter(restartsDesc, uint64(max(s.Restarts, 0)))
		log, err := c.launched.Log(s.Name)
		if err != nil {
			continue // it has just left the catalogue
		}
		stats := log.Stats()
		counter(logLinesDesc, stats.Lines)
		counter(logCutDesc, stats.Cut)
		counter(logDroppedDesc, stats.Dropped)
	}
}
