// Package boltstate keeps the state of a dynamicplugins.Registry in a bbolt file. It is the default StateStorage.
//
// Each plugin is one record, so a change costs the same however many plugins there are, and changes that arrive while one is being
// written are written together, with one fsync, by the transaction after it.
//
// Beside the plugins, a handler can keep keys and values of its own, in a [Bucket].
//
// A file that is damaged or has an unknown format is never opened for writing and never repaired: it stays as it is, byte for byte, and the
// error says what is wrong. The package stores what the registry passes to it, without knowing what it means.
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

// Store is a state file that is open. It implements dynamicplugins.StateStorage and dynamicplugins.ChangeStorage. All methods may
// be called at once from several goroutines.
type Store struct {
	path      string
	onFailure func(error)

	writing sync.Mutex // held during a transaction
	last    uint64     // the last transaction that succeeded; guarded by writing
	settled bool       // last is on the device for sure; guarded by writing
	lost    int        // the most bytes that could not be written since Check succeeded; guarded by writing

	access sync.RWMutex // held while db is used; who changes db also holds writing
	db     *database    // nil: a transaction failed, and the file could not be opened again
	failed error        // why

	mu     sync.Mutex
	next   *group        // the records that wait for writing; nil if there are none
	spare  []record      // empty, the memory of the group that was written last; the next one has as many records in a storm
	told   chan struct{} // that of the last group
	users  sync.WaitGroup
	closed bool
}

// GetDynamicPluginRegistryState returns what is stored, or an error if the file cannot be read or is damaged.
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

// add adds an instance that is older than those of the same plugin before it.
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

// PutDynamicPluginRegistryState replaces all plugins that are stored. It returns when they are durable, or an error if they are not.
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

// PutDynamicPluginChange replaces what is stored for one plugin. It returns when that is durable, or an error if it is not.
func (s *Store) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	e := newEncoder()
	defer e.free()
	r, err := e.change(change)
	if err != nil {
		return s.cannotWrite(err)
	}
	return s.commit(r)
}

// PutDynamicPluginChanges implements [dynamicplugins.BatchStorage]: all are written in one transaction.
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

// use makes Close wait for the caller, which calls s.users.Done when it has finished.
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
	before  chan struct{} // closed when all callers of the group before know of its end; nil for the first group
	done    chan struct{}
	err     error         // set before done is closed
	untold  atomic.Int64  // callers that do not know of err yet; set before done is closed
	told    chan struct{} // closed when there are none any more
}

// commit makes records durable. Those that arrive while nothing is written are written at once; those that arrive while a transaction
// is under way form a group, which the caller of the first of them writes next.
//
// The transaction of a group begins when all callers of the one before have been told. They are about to run anyway, a transaction
// that runs among them waits behind all of them whenever one of its writes has ended, and what they have to write next is in it.
//
// All records of a group fail together, so a record must not fail for a reason of its own.
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
		runtime.Gosched() // those that are about to join do
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

// join does what use does, and puts records into the next group. It reports whether the group is new: its caller is to write it then.
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

// write writes a group, which records may join until all that are there have been put into the transaction.
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

// maxSpare is how many records the memory that is kept for the next group has room for, at most.
const maxSpare = 4096

// take returns the records of g after the first n. If there are none, no more records can join g.
func (s *Store) take(g *group, n int) []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(g.records) == n {
		s.next = nil
	}
	return g.records[n:]
}

// record is what is stored for one plugin, or under one key of a [Bucket]. Without a value it is removed.
type record struct {
	bucket     []byte // nil for the plugins
	key, value []byte
	name       *record // that goes with it; nil for none
}

// encoder makes records that are used until it is freed: their memory is used again then.
type encoder struct{ text []byte }

var encoders = sync.Pool{New: func() any { return &encoder{make([]byte, 0, 1024)} }}

func newEncoder() *encoder {
	e, _ := encoders.Get().(*encoder)
	return e
}

// free lets later records reuse the memory of the records of e.
func (e *encoder) free() {
	const most = 1 << 20 // bytes, so that a great change leaves nothing great behind
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

// record checks that the record can be stored, so that it cannot make others fail in the same transaction.
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
