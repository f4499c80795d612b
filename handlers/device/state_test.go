package device_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/handlers/device"
)

func openState(t *testing.T, path string) *boltstate.Store {
	t.Helper()
	s, err := boltstate.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // a second time, mostly
	return s
}

func TestAllocationsOutliveTheProcess(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state.db")
	s := openState(t, state)
	r := newRig(t, newFake("a", "b"), &device.Handler{Store: s.Bucket("device")})
	first := r.give("one", 0, "b")
	r.must(errors.Join(r.Close(), s.Close()))

	s = openState(t, state)
	r.Handler = newHandler(t, &device.Handler{Store: s.Bucket("device")})
	eventually(t, r.Handler, "b:unavailable:one")
	if again := r.give("one", 0, "b"); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("after a restart the allocation is %v, want %v", again, first)
	}
	r.refuses(device.ErrConflict, "one", 1)
	r.must(r.reg())
	eventually(t, r.Handler, "a:healthy b:healthy:one")
	r.refuses(device.ErrInUse, "two", 0, "b")
	if _, err := r.Release(t.Context(), resource, "one"); err != nil {
		t.Fatal(err)
	}
	r.must(errors.Join(r.Close(), s.Close()))

	s = openState(t, state)
	if got := allocationsOf(newHandler(t, &device.Handler{Store: s.Bucket("device")})); len(got) != 0 {
		t.Errorf("what was released is back: %v", got)
	}
}

// TestAllocationOfAnEarlierBoot: what a plugin made ready before a reboot may be gone, such as the files of CDI in /run, so the plugin is
// asked again, with the same devices.
func TestAllocationOfAnEarlierBoot(t *testing.T) {
	m := newMemory()
	r := newRig(t, newFake("a", "b"), &device.Handler{Store: m})
	first := r.give("one", 0, "b")
	r.must(r.Close())
	const key = "allocation/" + resource + " one"
	var record map[string]any
	r.must(json.Unmarshal(m.values[key], &record))
	record["boot"] = "5f0e5b3c-0000-4000-8000-000000000000"
	rebooted, err := json.Marshal(record)
	r.must(err)
	m.values[key] = rebooted

	r.Handler = newHandler(t, &device.Handler{Store: m})
	r.refuses(device.ErrUnavailable, "one", 0, "b")
	r.must(r.reg())
	f := r.fake
	f.allocate = func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
		return nil, errors.New("not ready")
	}
	r.refuses(device.ErrRefused, "one", 0, "b")
	f.allocate = func(_ context.Context, ids []string) (*pluginapi.AllocateResponse, error) {
		a := answer(ids)
		a.ContainerResponses[0].Envs["BOOT"] = "2"
		return a, nil
	}
	m.fail(true, false)
	r.refuses(errDisk, "one", 0, "b")
	m.fail(false, false)
	again := r.give("one", 0, "b")
	if again.Answer.Envs["BOOT"] != "2" || !slices.Equal(again.Devices, first.Devices) || !again.Time.Equal(first.Time) {
		t.Errorf("after a reboot the allocation is %+v, want the devices of %+v and a new answer", again, first)
	}
	if third := r.give("one", 0, "b"); f.called("Allocate b") != 4 || fmt.Sprint(third) != fmt.Sprint(again) {
		t.Errorf("the plugin was asked %d times, want 4: once before the reboot, and after it until it answered and that was saved; then "+
			"the allocation is %+v", f.called("Allocate b"), third)
	}
	r.must(r.Close())
	r.Handler = newHandler(t, &device.Handler{Store: m})
	if kept := r.give("one", 0, "b"); fmt.Sprint(kept) != fmt.Sprint(again) {
		t.Errorf("after a restart the allocation is %+v, want %+v", kept, again)
	}
}

func TestDamagedRecords(t *testing.T) {
	good := `{"resource":"example.com/gadget","owner":"o","count":1,"devices":["a"]}`
	for name, records := range map[string]map[string]string{
		"no JSON":       {"allocation/example.com/gadget o": "{"},
		"another's":     {"allocation/example.com/gadget p": good},
		"no devices":    {"allocation/example.com/gadget o": `{"resource":"example.com/gadget","owner":"o"}`},
		"device twice":  {"allocation/example.com/gadget o": good, "allocation/example.com/gadget p": strings.Replace(good, `"o"`, `"p"`, 1)},
		"unknown field": {"allocation/example.com/gadget o": strings.Replace(good, "{", `{"later":1,`, 1), "later/x": "y"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			for k, v := range records {
				m.values[k] = []byte(v)
			}
			h := &device.Handler{Store: m}
			err := h.Open()
			if name == "unknown field" {
				if err != nil || show(h) != "a:unavailable:o" {
					t.Fatalf("got %v", err)
				}
				if err := h.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "is damaged") {
				t.Errorf("got %v, want that a record is damaged", err)
			}
		})
	}
}

// What may or may not have been saved is neither free nor given.
func TestSaveFails(t *testing.T) {
	m := newMemory()
	r := newRig(t, newFake("a", "b"), &device.Handler{Store: m})
	m.fail(true, false)
	r.refuses(errDisk, "one", 1)
	if got := show(r.Handler); got != "a:healthy b:healthy" {
		t.Errorf("after a save that failed devices are %s", got)
	}
	m.fail(true, true)
	r.refuses(errDisk, "one", 1)
	r.refuses(errDisk, "one", 1)
	if got := show(r.Handler); got != "a:healthy:one b:healthy" || len(allocationsOf(r.Handler)) != 0 {
		t.Errorf("in doubt devices are %s", got)
	}
	if _, err := r.Release(t.Context(), resource, "one"); !errors.Is(err, errDisk) {
		t.Errorf("release: %v", err)
	}
	r.refuses(device.ErrInUse, "two", 0, "a")
	m.fail(false, false)
	if got := r.give("one", 0, "b").Devices; !slices.Equal(got, []string{"b"}) {
		t.Errorf("allocated are %v", got)
	}
	m.fail(false, true)
	if _, err := r.Release(t.Context(), resource, "one"); !errors.Is(err, errDisk) {
		t.Errorf("release: %v", err)
	}
	r.refuses(device.ErrInUse, "two", 0, "b")
	m.fail(false, false)
	if _, err := r.Release(t.Context(), resource, "one"); err != nil {
		t.Error(err)
	}
	r.give("two", 2)
}

var errDisk = errors.New("disk is full")

// memory is a store that can fail.
type memory struct {
	mu                   sync.Mutex
	values               map[string][]byte
	failPut, failDelete  bool
	crashed, alsoApplies bool
}

func newMemory() *memory { return &memory{values: map[string][]byte{}} }

func (m *memory) fail(put, del bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failPut, m.failDelete = put, del
}

func (m *memory) Put(key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return errDisk
	}
	if !m.failPut || m.alsoApplies {
		m.values[key] = slices.Clone(value)
	}
	if m.failPut {
		return errDisk
	}
	return nil
}

func (m *memory) Delete(key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return errDisk
	}
	if !m.failDelete || m.alsoApplies {
		delete(m.values, key)
	}
	if m.failDelete {
		return errDisk
	}
	return nil
}

func (m *memory) ForEach(fn func(string, []byte) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(m.values)) {
		if err := fn(k, m.values[k]); err != nil {
			return err
		}
	}
	return nil
}
