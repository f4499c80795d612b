package dynamicplugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

// churnVariable is the number of plugins for TestChurn, in the place of those that it takes when nobody asks for more.
const churnVariable = "PATCHBAY_TEST_CHURN"

// TestChurn: plugins of fresh names that come and go leave nothing behind, neither in memory nor in the state file. It logs what each
// change costs in the first and in the last tenth.
func TestChurn(t *testing.T) {
	for name, test := range map[string]struct {
		durable        bool
		count, callers int
	}{
		"Memory":  {durable: false, count: 100_000, callers: 2},
		"Durable": {durable: true, count: 20_000, callers: 64},
	} {
		t.Run(name, func(t *testing.T) {
			count := test.count
			if testing.Short() {
				count /= 10
			}
			if value := os.Getenv(churnVariable); value != "" {
				var err error
				count, err = strconv.Atoi(value)
				check(t, err)
			}
			path := filepath.Join(t.TempDir(), "state.db")
			var state dynamicplugins.StateStorage
			if test.durable {
				store, err := boltstate.Open(path)
				check(t, err)
				defer store.Close()
				state = store
			}
			r := open(t, state, nil)
			const tenths = 10
			var heaps, sizes [tenths]int64
			var costs [tenths]time.Duration
			for i := range tenths {
				start := time.Now()
				churn(t, r, i*count/tenths, (i+1)*count/tenths, test.callers)
				costs[i] = time.Since(start) / time.Duration(count/tenths)
				heaps[i] = heap()
				if info, err := os.Stat(path); err == nil {
					sizes[i] = info.Size()
				}
			}
			t.Logf("%d plugins: %v each, then %v; heap %d kB, then %d kB; state file %d kB, then %d kB", count,
				costs[0], costs[tenths-1], heaps[0]>>10, heaps[tenths-1]>>10, sizes[0]>>10, sizes[tenths-1]>>10)
			// A name that is kept takes some hundred bytes.
			if grown := heaps[tenths-1] - heaps[0]; grown > 1<<20 {
				t.Errorf("the heap has grown by %d bytes", grown)
			}
			if sizes[tenths-1] > 1<<20 {
				t.Errorf("the state file has %d bytes", sizes[tenths-1])
			}
		})
	}
}

// churn lets callers register and deregister plugins from up to but not including to.
func churn(t *testing.T, r *dynamicplugins.Store, from, to, callers int) {
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := from + c; i < to; i += callers {
				p := newInfo("t", fmt.Sprint("driver ", i), fmt.Sprint(i))
				if err := r.RegisterPlugin(p); err != nil {
					t.Error(err)
				}
				if err := r.DeregisterPlugin(p.Type, p.Name, p.AllocID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// heap returns the bytes that live on the heap.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
