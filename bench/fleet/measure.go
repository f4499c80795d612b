package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// patience bounds each wait.
const patience = 15 * time.Minute

// measure is one run.
type measure struct {
	sizes
	out   io.Writer
	meter *meter

	dir              string
	etcd             *etcd
	admin            *clientv3.Client
	writing, reading *fleet.Cluster
	nodes            []*node
	reader           *fleet.Reader
}

// row prints a figure.
func (m *measure) row(what, format string, values ...any) {
	fmt.Fprintf(m.out, "  %-58s %s\n", what, fmt.Sprintf(format, values...))
}

func (m *measure) begin(ctx context.Context) (err error) {
	if m.dir, err = os.MkdirTemp(m.sizes.dir, "fleet"); err != nil {
		return err
	}
	fsync, err := syncTime(m.dir)
	if err != nil {
		return err
	}
	m.row("sizes", "%d nodes, %d plugins each, %d watchers", m.sizes.nodes, m.plugins, m.watchers)
	m.row("the disk: 4 KiB written and synced, p50", "%.2f ms", ms(fsync))
	if m.etcd, err = newEtcd(m.dir); err != nil {
		return err
	}
	if err := m.etcd.start(ctx); err != nil {
		return err
	}
	config := fleet.Etcd{Endpoints: []string{m.etcd.client}}
	if m.writing, err = fleet.Connect(config, m.meter.options()...); err != nil {
		return err
	}
	config.Timeout = time.Minute
	if m.reading, err = fleet.Connect(config); err != nil {
		return err
	}
	if m.admin, err = clientv3.New(clientv3.Config{Endpoints: []string{m.etcd.client}, Logger: zap.NewNop()}); err != nil {
		return err
	}
	for i := range m.sizes.nodes {
		m.nodes = append(m.nodes, newNode(i, m.plugins))
	}
	return nil
}

func (m *measure) close() (err error) {
	if m.reader != nil {
		m.reader.Close()
	}
	stopAll(m.nodes)
	if m.admin != nil {
		err = m.admin.Close()
	}
	return errors.Join(err, m.etcd.kill(), os.RemoveAll(m.dir))
}

// syncTime returns how long the disk takes.
func syncTime(dir string) (time.Duration, error) {
	file, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	var times []time.Duration
	for range 100 {
		began := time.Now()
		if _, err := file.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(began))
	}
	return quantile(times, 0.5), nil
}

// quantile sorts the times.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(int(q*float64(len(times))), len(times)-1)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// until waits until something is true.
func until(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond) //nolint:forbidigo // a measurement takes samples
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("not yet: %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// loaded measures etcd while something is done: its processor time, the requests of the nodes, and the second with the most of them.
func (m *measure) loaded(do func() error) error {
	cpu, err := m.etcd.cpu()
	if err != nil {
		return err
	}
	before, began, peak := m.meter.total(), time.Now(), make(chan int, 1)
	failed, sessions := m.failures()
	watching, stop := context.WithCancel(context.Background())
	go func() { peak <- m.peak(watching) }()
	err = do()
	stop()
	most := <-peak
	if err != nil {
		return err
	}
	elapsed := time.Since(began)
	after, err := m.etcd.cpu()
	if err != nil {
		return err
	}
	requests := m.meter.total() - before
	m.row("requests of the nodes", "%d in %.1f s: %.0f/s, at most %d in one second", requests, elapsed.Seconds(),
		float64(requests)/elapsed.Seconds(), most)
	failures, more := m.failures()
	if failures > failed {
		m.row("attempts of nodes that failed; sessions begun", "%d; %d", failures-failed, more-sessions)
	}
	m.row("processor time of etcd", "%.1f s: %.0f%% of a core", (after - cpu).Seconds(), 100*(after-cpu).Seconds()/elapsed.Seconds())
	return nil
}

// peak returns the most requests in one second before ctx ended.
func (m *measure) peak(ctx context.Context) int {
	tick := time.NewTicker(time.Second) //nolint:forbidigo // a measurement takes samples
	defer tick.Stop()
	last, most := m.meter.total(), 0
	for {
		select {
		case <-ctx.Done():
			return max(most, m.meter.total()-last)
		case <-tick.C:
			now := m.meter.total()
			most, last = max(most, now-last), now
		}
	}
}

// size prints the size of etcd.
func (m *measure) size(ctx context.Context, when string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	status, err := m.admin.Status(ctx, m.etcd.client)
	if err != nil {
		return err
	}
	memory, err := m.etcd.memory()
	if err != nil {
		return err
	}
	m.row("etcd "+when, "database %.1f MB, in use %.1f MB, resident %d MB",
		float64(status.DbSize)/1e6, float64(status.DbSizeInUse)/1e6, memory)
	return nil
}

// heap returns the bytes of the heap that are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// open opens a reader and returns how long it took to have everything.
func (m *measure) open(ctx context.Context) (*fleet.Reader, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	r := fleet.Open(m.reading, fleet.ReaderConfig{})
	if err := r.Ready(ctx); err != nil {
		r.Close()
		return nil, 0, err
	}
	return r, time.Since(began), nil
}

// failures adds up what the nodes tried in vain.
func (m *measure) failures() (failures, sessions uint64) {
	for _, n := range m.nodes {
		if n.Publisher == nil {
			continue
		}
		st := n.Stats()
		failures += st.Failures
		sessions += st.Sessions
	}
	return failures, sessions
}
