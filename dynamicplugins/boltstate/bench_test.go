package boltstate_test

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

// info is a plugin whose record takes about 200 bytes.
func info(i int) *dynamicplugins.PluginInfo {
	return &dynamicplugins.PluginInfo{
		Type:           "CSIPlugin",
		Name:           fmt.Sprintf("driver-%06d.csi.example.com", i),
		Version:        "1.2.3",
		AllocID:        fmt.Sprintf("6a0c3c2e-7a52-4d0b-9b0e-%012d", i),
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: fmt.Sprintf("/run/patchbay/plugins/driver-%06d/csi.sock", i)},
		Options: map[string]string{
			"versions": "1.0.0,1.1.0",
			"endpoint": fmt.Sprintf("/var/lib/kubelet/plugins/driver-%06d.csi.example.com/csi.sock", i),
		},
	}
}

// open makes a registry with n plugins on a state file.
func open(b *testing.B, n int) dynamicplugins.Registry {
	b.Helper()
	path := filepath.Join(b.TempDir(), "state.db")
	store, err := boltstate.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	r, err := dynamicplugins.Open(store, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.Shutdown)
	spread(256, n, func(i int) error { return r.RegisterPlugin(info(i)) })
	return r
}

// spread lets callers goroutines do n pieces of work.
func spread(callers, n int, work func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := work(int(i)); err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
}

func openBolt(b *testing.B, n int) *bbolt.DB {
	b.Helper()
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "floor.db"), 0o600, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	err = db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucket([]byte("plugins"))
		for i := 0; err == nil && i < n; i++ {
			err = bucket.Put(floorKey(i), make([]byte, 200))
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return db
}

func floorKey(i int) []byte { return fmt.Appendf(nil, "CSIPlugin/driver-%06d.csi.example.com", i) }

func putFloor(i int) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return tx.Bucket([]byte("plugins")).Put(floorKey(i), make([]byte, 200)) }
}

func deleteFloor(i int) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return tx.Bucket([]byte("plugins")).Delete(floorKey(i)) }
}

// BenchmarkRegister is row P6: one caller registers fresh plugins, durably. The floor is one bbolt update of 200 bytes in a file
// with as many keys, in turn with ours, because the disk's speed varies.
func BenchmarkRegister(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("registered=%d", n), func(b *testing.B) {
			r, db := open(b, n), openBolt(b, n)
			var floor, ours time.Duration
			i := n
			for b.Loop() {
				i++
				start := time.Now()
				if err := db.Update(putFloor(i)); err != nil {
					b.Fatal(err)
				}
				middle := time.Now()
				if err := r.RegisterPlugin(info(i)); err != nil {
					b.Fatal(err)
				}
				floor += middle.Sub(start)
				ours += time.Since(middle)
			}
			b.ReportMetric(float64(floor.Nanoseconds())/float64(b.N), "floor-ns/op")
			b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "ours-ns/op")
			b.ReportMetric(float64(ours)/float64(floor), "ratio")
		})
	}
}

// BenchmarkRegisterParallel is row P7: many callers register fresh plugins at 10,000 registered, durably. The floor is the best of
// bbolt's own Batch, for several delays: as many callers, keys and bytes, in turn with ours and deleted again after each turn,
// because the disk's speed varies and a file with many free pages is slower. The ratio is the median of those of the turns.
func BenchmarkRegisterParallel(b *testing.B) {
	const registered, rounds = 10_000, 50
	for _, callers := range []int{64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			each := rounds * callers
			r := open(b, registered)
			db := openBolt(b, registered)
			db.MaxBatchSize = callers
			delays := []time.Duration{0, 200 * time.Microsecond, time.Millisecond}
			floors := make([][]float64, len(delays)) // seconds, by delay and turn
			var ours []float64
			fresh := make([]*dynamicplugins.PluginInfo, each)
			for i := range fresh {
				fresh[i] = info(registered + i)
			}
			for b.Loop() {
				ours = append(ours, timed(func() {
					spread(callers, each, func(i int) error { return r.RegisterPlugin(fresh[i]) })
				}))
				spread(callers, each, func(i int) error {
					return r.DeregisterPlugin(fresh[i].Type, fresh[i].Name, fresh[i].AllocID)
				})
				for d, delay := range delays {
					db.MaxBatchDelay = delay
					floors[d] = append(floors[d], timed(func() {
						spread(callers, each, func(i int) error { return db.Batch(putFloor(registered + i)) })
					}))
					db.MaxBatchDelay = time.Millisecond
					spread(callers, each, func(i int) error { return db.Batch(deleteFloor(registered + i)) })
				}
			}
			floor := slices.MinFunc(floors, func(x, y []float64) int { return cmp.Compare(median(x), median(y)) })
			ratios := make([]float64, len(ours))
			for i := range ours {
				ratios[i] = floor[i] / ours[i]
			}
			b.ReportMetric(float64(each)/median(floor), "floor/s")
			b.ReportMetric(float64(each)/median(ours), "ours/s")
			b.ReportMetric(median(ratios), "ratio")
		})
	}
}

// timed returns how many seconds f takes.
func timed(f func()) float64 {
	start := time.Now()
	f()
	return time.Since(start).Seconds()
}

func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }
