// Package boltstate stores the state of a dynamicplugins.Registry in a bbolt file. It is the default StateStorage.
//
// Each plugin is one record, so the cost of a change does not depend on the number of plugins. Changes that arrive during a transaction are
// written together in the next one, with one fsync. In addition, handlers can store keys and values in a [Bucket].
//
// A file that is damaged or has an unknown format is never changed or repaired: [Open] returns an error that describes the problem. The
// package does not interpret the plugins that it stores.
package boltstate

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// Store is an open state file. It implements [dynamicplugins.BatchStorage], and is safe for concurrent use.
type Store struct {
	path      string
	onFailure func(error)

	writing sync.Mutex // held during a transaction
	last    uint64     // the last successful transaction; guarded by writing
	settled bool       // last is certainly on the device; guarded by writing
	lost    int        // the greatest number of bytes that could not be written since the last successful Check; guarded by writing

	access sync.RWMutex // held while db is used; a change of db also requires writing
	db     *database    // nil after a failed transaction, until the file is open again
	failed error        // why db is nil

	mu     sync.Mutex
	next   *group        // the records that wait to be written; nil if there are none
	spare  []record      // empty; the memory of the last group, for the next one
	told   chan struct{} // that of the last group
	users  sync.WaitGroup
	closed bool
}

// GetDynamicPluginRegistryState returns the stored state, or an error if the file cannot be read or is damaged.
func (s *Store) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	if err := s.use(); err != nil {
		return nil, err
	}
	defer s.users.Done()
	state := &dynamicplugins.RegistryState{Plugins: make(map[string]map[string]*list.List)}
	err := s.view(func(tx *bbolt.Tx) error {
		// gofail: var boltstateLoad string
		// return fmt.Errorf("%s", boltstateLoad)
		err := tx.Bucket(pluginsBucket).ForEach(func(key, value []byte) error {
			plugins, err := decode(key, value)
			if err != nil {
				return fmt.Errorf("record %q: %w", key, err)
			}
			for _, p := range plugins {
				add(state, p)
			}
			return nil
		})
		if err == nil {
			state.Reservations, err = reservations(tx)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read state file %s: %w", s.path, err)
	}
	return state, nil
}

// add adds an instance as the oldest of its plugin.
func add(state *dynamicplugins.RegistryState, p *dynamicplugins.PluginInfo) {
	names := state.Plugins[p.Type]
	if names == nil {
		names = make(map[string]*list.List)
		state.Plugins[p.Type] = names
	}
	if names[p.Name] == nil {
		names[p.Name] = list.New()
	}
	names[p.Name].PushBack(p)
}

// PutDynamicPluginRegistryState replaces all stored plugins. It blocks until they are durable, or returns an error.
func (s *Store) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	records, err := recordsOf(state)
	if err != nil {
		return s.cannotWrite(err)
	}
	return s.replace(records)
}

func (s *Store) replace(records []record) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.users.Done()
	s.writing.Lock()
	defer s.writing.Unlock()
	err := s.update(func(tx *bbolt.Tx) error {
		if err := tx.DeleteBucket(pluginsBucket); err != nil {
			return err
		}
		bucket, err := tx.CreateBucket(pluginsBucket)
		if err != nil {
			return err
		}
		for _, r := range records {
			if err := r.put(bucket); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.unsaved(records)
		return s.cannotWrite(err)
	}
	return nil
}

// PutDynamicPluginChange replaces the stored instances of one plugin. It blocks until they are durable, or returns an error.
func (s *Store) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	e := newEncoder()
	defer e.free()
	r, err := e.change(change)
	if err != nil {
		return s.cannotWrite(err)
	}
	return s.commit(r)
}

// PutDynamicPluginChanges implements [dynamicplugins.BatchStorage] with one transaction.
func (s *Store) PutDynamicPluginChanges(changes []*dynamicplugins.PluginChange) []error {
	errs := make([]error, len(changes))
	records := make([]record, 0, len(changes))
	failed := false
	e := newEncoder()
	defer e.free()
	for i, change := range changes {
		r, err := e.change(change)
		if err != nil {
			errs[i], failed = s.cannotWrite(err), true
			continue
		}
		records = append(records, r)
	}
	if len(records) > 0 {
		if err := s.commit(records...); err != nil {
			for i := range errs {
				errs[i] = cmp.Or(errs[i], err)
			}
			failed = true
		}
	}
	if !failed {
		return nil
	}
	return errs
}

func (s *Store) cannotWrite(err error) error {
	return fmt.Errorf("cannot write state file %s: %w", s.path, err)
}

// Close waits for changes that are being written, and closes the file. Calling it again has no effect.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.users.Wait()
	s.access.RLock()
	defer s.access.RUnlock()
	if s.db == nil {
		return nil
	}
	// gofail: var boltstateClose string
	// return fmt.Errorf("cannot close state file %s: %s%v", s.path, boltstateClose, s.db.bolt.Close())
	if err := s.db.bolt.Close(); err != nil {
		return fmt.Errorf("cannot close state file %s: %w", s.path, err)
	}
	return nil
}

// use makes Close wait until the caller calls s.users.Done.
func (s *Store) use() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enter()
}

// enter is use for a caller that holds s.mu.
func (s *Store) enter() error {
	if s.closed {
		return fmt.Errorf("cannot use state file %s: %w", s.path, ErrClosed)
	}
	s.users.Add(1)
	return nil
}

type group struct {
	records []record      // guarded by Store.mu
	callers int           // guarded by Store.mu
	before  chan struct{} // the told channel of the group before; nil for the first group
	done    chan struct{}
	err     error         // set before done is closed
	untold  atomic.Int64  // callers that have not returned from commit; set before done is closed
	told    chan struct{} // closed when untold is zero
}

// commit makes records durable. Records that arrive during a transaction form a group, which the caller of the first one writes in the next
// transaction.
//
// A transaction begins after all callers of the one before have returned: otherwise it would wait for their goroutines after each of its
// writes, and the records that these callers write next would not be part of it.
//
// All records of a group fail together, so a record must not cause an error itself.
func (s *Store) commit(records ...record) error {
	g, first, err := s.join(records)
	if err != nil {
		return err
	}
	defer s.users.Done()
	if first {
		if g.before != nil {
			<-g.before
		}
		runtime.Gosched() // to callers that are about to join
		s.write(g)
	} else {
		<-g.done
	}
	err = g.err
	if g.untold.Add(-1) == 0 {
		close(g.told)
	}
	return err
}

// join calls enter and adds records to the next group. If first is true, the group is new, and the caller must write it.
func (s *Store) join(records []record) (g *group, first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(); err != nil {
		return nil, false, err
	}
	first = s.next == nil
	if first {
		s.next = &group{
			records: s.spare, before: s.told, done: make(chan struct{}), told: make(chan struct{}),
		}
		s.told, s.spare = s.next.told, nil
	}
	s.next.records = append(s.next.records, records...)
	s.next.callers++
	return s.next, first, nil
}

// write writes a group. Records can join it until all its records have been put into the transaction.
func (s *Store) write(g *group) {
	s.writing.Lock()
	defer s.writing.Unlock()
	err := s.update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(pluginsBucket)
		for put := 0; ; {
			records := s.take(g, put)
			if len(records) == 0 {
				return nil
			}
			for _, r := range records {
				if err := r.put(bucket); err != nil {
					return err
				}
			}
			put += len(records)
		}
	})
	if err != nil {
		g.err = s.cannotWrite(err)
	}
	s.mu.Lock()
	if s.next == g { // the transaction failed early
		s.next = nil
	}
	if err != nil {
		s.unsaved(g.records)
	}
	if clear(g.records); cap(g.records) <= maxSpare {
		s.spare = g.records[:0]
	}
	g.untold.Store(int64(g.callers))
	s.mu.Unlock()
	close(g.done)
}

// maxSpare is the greatest capacity of Store.spare.
const maxSpare = 4096

// take returns the records of g after the first n. If there are none, it closes g to further records.
func (s *Store) take(g *group, n int) []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(g.records) == n {
		s.next = nil
	}
	return g.records[n:]
}

// record is a key and value of a bucket in the file. With a nil value, the key is deleted.
type record struct {
	bucket     []byte // nil for the plugins
	key, value []byte
	name       *record // the reservation of the plugin's name, written together with it; nil for none
}

// encoder makes records, which are valid until free is called.
type encoder struct{ text []byte }

var encoders = sync.Pool{New: func() any { return &encoder{make([]byte, 0, 1024)} }}

func newEncoder() *encoder {
	e, _ := encoders.Get().(*encoder)
	return e
}

// free makes the memory of e available to later records.
func (e *encoder) free() {
	const most = 1 << 20 // bytes; more is not kept
	if cap(e.text) <= most {
		e.text = e.text[:0]
		encoders.Put(e)
	}
}

func (e *encoder) change(change *dynamicplugins.PluginChange) (record, error) {
	if change == nil {
		return record{}, errors.New("a change is nil")
	}
	r, err := e.record(change.Type, change.Name, change.Plugins)
	if err == nil && change.Reservation != nil {
		r.name = &record{bucket: namesBucket, key: r.key, value: encodeReservation(r.key, *change.Reservation)}
	}
	return r, err
}

// record returns the record of a plugin, or an error if it cannot be stored, which would fail the other records of its transaction.
func (e *encoder) record(ptype, name string, plugins []*dynamicplugins.PluginInfo) (record, error) {
	for _, p := range plugins {
		if p == nil || p.Type != ptype || p.Name != name {
			return record{}, fmt.Errorf("plugin %q for type %q has an instance of another plugin: %+v", name, ptype, p)
		}
	}
	begin := len(e.text)
	e.text = appendKey(e.text, ptype, name)
	r := record{key: e.text[begin:len(e.text):len(e.text)]}
	if len(r.key) > bbolt.MaxKeySize {
		return record{}, fmt.Errorf("the type and name of a plugin are longer than %d bytes: %.40q…", bbolt.MaxKeySize, name)
	}
	if len(plugins) > 0 {
		begin = len(e.text)
		e.text = appendValue(e.text, r.key, plugins)
		r.value = e.text[begin:len(e.text):len(e.text)]
	}
	if len(r.value) > bbolt.MaxValueSize {
		return record{}, fmt.Errorf("the instances of plugin %q for type %q take more than %d bytes", name, ptype, bbolt.MaxValueSize)
	}
	return r, nil
}

func (r record) put(plugins *bbolt.Bucket) error {
	// gofail: var boltstatePut string
	// return fmt.Errorf("%s", boltstatePut)
	if r.name != nil {
		if err := r.name.put(plugins); err != nil {
			return err
		}
	}
	bucket := plugins
	if r.bucket != nil {
		var err error
		if bucket, err = plugins.Tx().CreateBucketIfNotExists(r.bucket); err != nil {
			return err
		}
	}
	if r.value == nil {
		return bucket.Delete(r.key)
	}
	return bucket.Put(r.key, r.value)
}

func recordsOf(state *dynamicplugins.RegistryState) ([]record, error) {
	if state == nil {
		return nil, nil
	}
	var e encoder
	var records []record
	for ptype, names := range state.Plugins {
		for name, instances := range names {
			if instances == nil {
				instances = list.New()
			}
			var plugins []*dynamicplugins.PluginInfo
			for e := instances.Front(); e != nil; e = e.Next() {
				p, ok := e.Value.(*dynamicplugins.PluginInfo)
				if !ok {
					return nil, fmt.Errorf("plugin %q for type %q has a %T in its list instead of a *PluginInfo", name, ptype, e.Value)
				}
				plugins = append(plugins, p)
			}
			r, err := e.record(ptype, name, plugins)
			if err != nil {
				return nil, err
			}
			records = append(records, r)
		}
	}
	return records, nil
}
