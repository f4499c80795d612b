package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// start starts all nodes and waits until each has been published. The times are those from the beginning.
func (m *measure) start(ctx context.Context) ([]time.Duration, error) {
	began := time.Now()
	for _, n := range m.nodes {
		if err := n.start(m.writing); err != nil {
			return nil, err
		}
	}
	times := make([]time.Duration, len(m.nodes))
	left := len(m.nodes)
	err := until(ctx, "all nodes are published", func() bool {
		for i, n := range m.nodes {
			if times[i] == 0 && n.Condition().OK {
				times[i] = time.Since(began)
				left--
			}
		}
		return left == 0
	})
	return times, err
}

func (m *measure) publish(ctx context.Context) error {
	var times []time.Duration
	err := m.loaded(func() (err error) { times, err = m.start(ctx); return err })
	if err != nil {
		return err
	}
	m.row("until a node is published: p50, p99, all", "%.1f s, %.1f s, %.1f s", quantile(times, 0.5).Seconds(),
		quantile(times, 0.99).Seconds(), quantile(times, 1).Seconds())
	var bytes uint64
	for _, n := range m.nodes {
		bytes += n.Stats().Bytes
	}
	failures, _ := m.failures()
	m.row("values written", "%.1f MB, %.0f bytes for each node", float64(bytes)/1e6, float64(bytes)/float64(len(m.nodes)))
	m.row("attempts that failed", "%d", failures)
	return m.size(ctx, "then")
}

func (m *measure) list(ctx context.Context) error {
	var times []time.Duration
	for range 5 {
		r, took, err := m.open(ctx)
		if err != nil {
			return err
		}
		r.Close()
		times = append(times, took)
	}
	m.row("until it has everything: median, most of 5", "%.0f ms, %.0f ms", ms(quantile(times, 0.5)), ms(quantile(times, 1)))
	before := heap()
	r, _, err := m.open(ctx)
	if err != nil {
		return err
	}
	m.reader = r
	after := heap()
	count := len(r.Plugins(fleet.Filter{}))
	m.row("its heap", "%.1f MB for %d plugins: %.0f bytes for each", float64(after-before)/1e6, count, float64(after-before)/float64(count))
	if want := len(m.nodes) * m.plugins; count != want {
		return fmt.Errorf("the reader has %d plugins and not %d", count, want)
	}
	return nil
}

func (m *measure) idle(ctx context.Context) error {
	const keepAlive = "/etcdserverpb.Lease/LeaseKeepAlive"
	total, renewals := m.meter.total(), m.meter.of(keepAlive)
	err := m.loaded(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(m.rest): //nolint:forbidigo // so long is measured
			return nil
		}
	})
	if err != nil {
		return err
	}
	total, renewals = m.meter.total()-total, m.meter.of(keepAlive)-renewals
	m.row("renewals of leases among them; other requests", "%d; %d", renewals, total-renewals)
	return nil
}

// arrival is a change that a watcher has seen.
type arrival struct {
	version string
	at      time.Time
}

func (m *measure) delays(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, began := heap(), time.Now()
	arrivals := make(chan arrival, m.watchers)
	for range m.watchers {
		r, _, err := m.open(ctx)
		if err != nil {
			return err
		}
		defer r.Close()
		_, changes, err := r.Watch(ctx, fleet.Filter{Names: []string{changing}})
		if err != nil {
			return err
		}
		go func() {
			for c := range changes {
				if c.Plugin != nil && strings.HasPrefix(c.Plugin.Version, "changed-") {
					arrivals <- arrival{c.Plugin.Version, time.Now()}
				}
			}
		}()
	}
	m.row("readers, each with its own connection, list and watch", "%d, opened one by one in %.1f s", m.watchers, time.Since(began).Seconds())
	m.row("their heap", "%.1f MB for each", float64(heap()-before)/1e6/float64(m.watchers))
	var fromChange, fromWrite, last []time.Duration
	for i := range m.changes {
		n, version := m.nodes[rand.IntN(len(m.nodes))], fmt.Sprintf("changed-%d", i)
		changed := time.Now()
		n.change(version)
		var seen []time.Time
		for len(seen) < m.watchers {
			select {
			case a := <-arrivals:
				if a.version == version {
					seen = append(seen, a.at)
				}
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(patience): //nolint:forbidigo // the bound of one wait
				return fmt.Errorf("%d of %d readers have seen a change", len(seen), m.watchers)
			}
		}
		if err := until(ctx, "the write is counted", func() bool { return n.Stats().Published.After(changed) }); err != nil {
			return err
		}
		written := n.Stats().Published
		var latest time.Duration
		for _, at := range seen {
			fromChange = append(fromChange, at.Sub(changed))
			fromWrite = append(fromWrite, at.Sub(written))
			latest = max(latest, at.Sub(written))
		}
		last = append(last, latest)
	}
	m.row("from the change in the node: p50, p99", "%.0f ms, %.0f ms", ms(quantile(fromChange, 0.5)), ms(quantile(fromChange, 0.99)))
	m.row("from the beginning of its write: p50, p99", "%.1f ms, %.1f ms", ms(quantile(fromWrite, 0.5)), ms(quantile(fromWrite, 0.99)))
	m.row("until the last reader has it: p50, p99", "%.1f ms, %.1f ms", ms(quantile(last, 0.5)), ms(quantile(last, 0.99)))
	return nil
}

// changeAll changes a plugin of every node and returns when a reader has seen all of it. Resyncs counts how often the reader said that it
// had given up changes, which it does when thousands of them are not read in time: on a machine that does too much else.
func (m *measure) changeAll(ctx context.Context, version string) (resyncs int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	filter := fleet.Filter{Names: []string{changing}, Versions: []string{version}}
	_, changes, err := m.reader.Watch(ctx, filter)
	if err != nil {
		return 0, err
	}
	for _, n := range m.nodes {
		n.change(version)
	}
	seen := map[string]bool{}
	for c := range changes {
		switch {
		case c.Kind == fleet.Resync:
			resyncs++
			for _, p := range m.reader.Plugins(filter) {
				seen[p.Node.Name] = true
			}
		case c.Plugin != nil && c.Kind == fleet.Added:
			seen[c.Plugin.Node.Name] = true
		}
		if len(seen) == len(m.nodes) {
			return resyncs, nil
		}
	}
	return resyncs, fmt.Errorf("a reader was told of %d of %d changes, and of %d resyncs, and knows of %d: %w",
		len(seen), len(m.nodes), resyncs, len(m.reader.Plugins(filter)), ctx.Err())
}

func (m *measure) churn(ctx context.Context) error {
	var bytes, writes uint64
	for _, n := range m.nodes {
		bytes -= n.Stats().Bytes
		writes -= n.Stats().Writes
	}
	var took []string
	resyncs := 0
	err := m.loaded(func() error {
		for round := range m.rounds {
			began, version := time.Now(), fmt.Sprintf("round-%d", round)
			n, err := m.changeAll(ctx, version)
			if err != nil {
				return err
			}
			resyncs += n
			took = append(took, fmt.Sprintf("%.1f", time.Since(began).Seconds()))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, n := range m.nodes {
		bytes += n.Stats().Bytes
		writes += n.Stats().Writes
	}
	m.row("until a reader has seen all nodes, by round", "%s s, with %d resyncs", strings.Join(took, ", "), resyncs)
	m.row("values written", "%.1f MB in %d transactions", float64(bytes)/1e6, writes)
	if err := m.size(ctx, "then"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := m.admin.Status(ctx, m.etcd.client)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := m.admin.Compact(ctx, status.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return err
	}
	m.row("compaction takes", "%.0f ms", ms(time.Since(began)))
	if err := m.size(ctx, "after it"); err != nil {
		return err
	}
	began = time.Now()
	if _, err := m.admin.Defragment(ctx, m.etcd.client); err != nil {
		return err
	}
	m.row("defragmentation takes", "%.0f ms", ms(time.Since(began)))
	return m.size(ctx, "after it")
}

func (m *measure) restartNodes(ctx context.Context) error {
	began := time.Now()
	stopAll(m.nodes)
	m.row("until all nodes have stopped", "%.1f s", time.Since(began).Seconds())
	for _, n := range m.nodes {
		n.Publisher = nil
	}
	began = time.Now()
	var seen time.Duration
	var times []time.Duration
	err := m.loaded(func() (err error) {
		if times, err = m.start(ctx); err != nil {
			return err
		}
		err = until(ctx, "the reader sees all nodes", func() bool {
			instances := map[string]string{}
			for _, n := range m.reader.Nodes() {
				if n.State == fleet.NodeReady {
					instances[n.Name] = n.GetInstance()
				}
			}
			for _, n := range m.nodes {
				if instances[n.name] != n.Instance() {
					return false
				}
			}
			return true
		})
		seen = time.Since(began)
		return err
	})
	if err != nil {
		return err
	}
	failures, _ := m.failures()
	m.row("until a node is published: p50, p99, all", "%.1f s, %.1f s, %.1f s", quantile(times, 0.5).Seconds(),
		quantile(times, 0.99).Seconds(), quantile(times, 1).Seconds())
	m.row("until a reader sees all of them as they are", "%.1f s", seen.Seconds())
	m.row("attempts that failed", "%d", failures)
	return m.size(ctx, "then")
}

func (m *measure) restartEtcd(ctx context.Context) error {
	failed, _ := m.failures()
	sessions := make([]uint64, len(m.nodes))
	for i, n := range m.nodes {
		sessions[i] = n.Stats().Sessions
	}
	lists := m.reader.Stats().Lists
	if err := m.etcd.kill(); err != nil {
		return err
	}
	began := time.Now()
	if err := m.etcd.start(ctx); err != nil {
		return err
	}
	m.row("until etcd is ready again", "%.1f s", time.Since(began).Seconds())
	times := make([]time.Duration, len(m.nodes))
	left := len(m.nodes)
	err := m.loaded(func() error {
		return until(ctx, "all nodes are published", func() bool {
			for i, n := range m.nodes {
				if times[i] == 0 && n.Stats().Sessions > sessions[i] && n.Condition().OK {
					times[i] = time.Since(began)
					left--
				}
			}
			return left == 0
		})
	})
	if err != nil {
		return err
	}
	failures, _ := m.failures()
	m.row("until a node is published: p50, p99, all", "%.1f s, %.1f s, %.1f s", quantile(times, 0.5).Seconds(),
		quantile(times, 0.99).Seconds(), quantile(times, 1).Seconds())
	m.row("attempts that failed", "%d", failures-failed)
	if err := until(ctx, "the reader sees all nodes ready", func() bool {
		for _, n := range m.reader.Nodes() {
			if n.State != fleet.NodeReady {
				return false
			}
		}
		return m.reader.Health().Current
	}); err != nil {
		return err
	}
	m.row("until the reader sees all nodes ready", "%.1f s, with %d lists", time.Since(began).Seconds(), m.reader.Stats().Lists-lists)
	return nil
}
