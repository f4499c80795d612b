package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-dev/patchbay/fleet"
)

var (
	fleetSessionsDesc = prometheus.NewDesc("patchbay_fleet_sessions_total",
		"How often etcd was found and the node published there.", nil, nil)
	fleetFailuresDesc = prometheus.NewDesc("patchbay_fleet_failures_total",
		"Connections to etcd and writes for the fleet that failed.", nil, nil)
	fleetWritesDesc = prometheus.NewDesc("patchbay_fleet_writes_total",
		"Transactions that wrote to etcd what the node publishes.", nil, nil)
	fleetWrittenDesc = prometheus.NewDesc("patchbay_fleet_written_bytes_total",
		"The size of the values that were written to etcd.", nil, nil)
	fleetPublishedDesc = prometheus.NewDesc("patchbay_fleet_last_write_timestamp_seconds",
		"When the node was last written to etcd, in seconds since 1970.", nil, nil)
	fleetListsDesc = prometheus.NewDesc("patchbay_fleet_reader_lists_total",
		"How often the whole fleet was read from etcd.", nil, nil)
	fleetWatchesDesc = prometheus.NewDesc("patchbay_fleet_reader_watches_total",
		"How often a watch of the fleet began in etcd.", nil, nil)
	fleetEventsDesc = prometheus.NewDesc("patchbay_fleet_reader_events_total",
		"Changes of keys of the fleet that came from etcd.", nil, nil)
	fleetCurrentDesc = prometheus.NewDesc("patchbay_fleet_reader_current",
		"Whether the daemon follows the fleet in etcd: 1 if so, 0 if it has lost it; absent while nobody asks for the fleet.", nil, nil)
)

// watchFleet has what the daemon does for the fleet collected; nil stands for a node of no fleet.
func (m *metrics) watchFleet(member *fleetMember) {
	if member != nil {
		m.registry.MustRegister(fleetCollector{member})
	}
}

// fleetCollector makes the metrics of the fleet.
type fleetCollector struct{ member *fleetMember }

// Describe implements [prometheus.Collector].
func (c fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		fleetSessionsDesc, fleetFailuresDesc, fleetWritesDesc, fleetWrittenDesc, fleetPublishedDesc, fleetListsDesc, fleetWatchesDesc,
		fleetEventsDesc, fleetCurrentDesc,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c fleetCollector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, value uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value))
	}
	gauge := func(d *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	stats := c.member.publisher.Stats()
	counter(fleetSessionsDesc, stats.Sessions)
	counter(fleetFailuresDesc, stats.Failures)
	counter(fleetWritesDesc, stats.Writes)
	counter(fleetWrittenDesc, stats.Bytes)
	if !stats.Published.IsZero() {
		gauge(fleetPublishedDesc, float64(stats.Published.UnixMilli())/1000)
	}
	read, health := c.member.readerStats()
	counter(fleetListsDesc, read.Lists)
	counter(fleetWatchesDesc, read.Watches)
	counter(fleetEventsDesc, read.Events)
	if health != nil {
		current := 0.0
		if health.Current {
			current = 1
		}
		gauge(fleetCurrentDesc, current)
	}
}

// readerStats returns what all readers so far did, and how the present one is; nil for none.
func (m *fleetMember) readerStats() (fleet.ReaderStats, *fleet.Health) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reader == nil {
		return m.closedReaders, nil
	}
	return m.closedReaders.Add(m.reader.Stats()), new(m.reader.Health())
}
