package boltstate

import (
	"container/list"
	"fmt"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// Store is a state file that is open. It implements dynamicplugins.StateStorage and dynamicplugins.ChangeStorage. All methods may
// be called at once from several goroutines.
type Store struct {
	path      string
	onFailure func(error)

	writing sync.Mutex // held from the beginning of a transaction until those whom it concerns have been told
	last    uint64     // the last transaction that succeeded; guarded by writing
	settled bool       // last is on the device for sure; guarded by writing
	lost    int        // the most bytes that could not be written since Check succeeded; guarded by writing

	access sync.RWMutex // held while db is used; who changes db also holds writing
	db     *database    // nil: a transaction failed, and the file could not be opened again
	failed error        // why

	mu     sync.Mutex
	next   *group // the records that wait for writing; nil if there are none
	users  sync.WaitGroup
	closed bool
}

// GetDynamicPluginRegistryState returns what is stored.
func (s *Store) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	if err := s.use(); err != nil {
		return nil, err
	}
	defer s.users.Done()
	state := &dynamicplugins.RegistryState{Plugins: make(map[string]map[string]*list.List)}
	err := s.view(func(tx *bbolt.Tx) error {
		// gofail: var boltstateLoad string
		// return fmt.Errorf("%s", boltstateLoad)
		return tx.Bucket(pluginsBucket).ForEach(func(key, value []byte) error {
			plugins, err := decode(key, value)
			if err != nil {
				return fmt.Errorf("record %q: %w", key, err)
			}
			for _, p := range plugins {
				add(state, p)
			}
			return nil
		})
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

// PutDynamicPluginRegistryState replaces everything that is stored.
func (s *Store) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	var records []record
	if state != nil {
		for ptype, names := range state.Plugins {
			for name, instances := range names {
				plugins, err := pluginsOf(ptype, name, instances)
				if err != nil {
					return fmt.Errorf("cannot write state file %s: %w", s.path, err)
				}
				r, err := newRecord(ptype, name, plugins)
				if err != nil {
					return fmt.Errorf("cannot write state file %s: %w", s.path, err)
				}
				records = append(records, r)
			}
		}
	}
	return s.replace(records)
}

// replace writes records in the place of all that are stored.
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
		return fmt.Errorf("cannot write state file %s: %w", s.path, err)
	}
	return nil
}

// PutDynamicPluginChange replaces what is stored for one plugin.
func (s *Store) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	r, err := newRecord(change.Type, change.Name, change.Plugins)
	if err != nil {
		return fmt.Errorf("cannot write state file %s: %w", s.path, err)
	}
	return s.commit(r)
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

// use counts the caller among those whom Close waits for; it calls s.users.Done when it has finished.
func (s *Store) use() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enter()
}

// enter is use for who holds s.mu.
func (s *Store) enter() error {
	if s.closed {
		return fmt.Errorf("cannot use state file %s: %w", s.path, ErrClosed)
	}
	s.users.Add(1)
	return nil
}

// record is what is stored for one plugin, or under one key of a [Bucket]. Without a value it is removed.
type record struct {
	bucket     []byte // nil for the plugins
	key, value []byte
}

// newRecord checks that the record can be stored, so that it cannot make others fail in the same transaction.
func newRecord(ptype, name string, plugins []*dynamicplugins.PluginInfo) (record, error) {
	r := record{key: encodeKey(ptype, name)}
	if len(r.key) > bbolt.MaxKeySize {
		return record{}, fmt.Errorf("the type and name of a plugin are longer than %d bytes: %.40q…", bbolt.MaxKeySize, name)
	}
	for _, p := range plugins {
		if p == nil || p.Type != ptype || p.Name != name {
			return record{}, fmt.Errorf("plugin %q for type %q has an instance of another plugin: %+v", name, ptype, p)
		}
	}
	if len(plugins) > 0 {
		r.value = encodeValue(r.key, plugins)
	}
	if len(r.value) > bbolt.MaxValueSize {
		return record{}, fmt.Errorf("the instances of plugin %q for type %q take more than %d bytes", name, ptype, bbolt.MaxValueSize)
	}
	return r, nil
}

func (r record) put(plugins *bbolt.Bucket) error {
	// gofail: var boltstatePut string
	// return fmt.Errorf("%s", boltstatePut)
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

func pluginsOf(ptype, name string, instances *list.List) ([]*dynamicplugins.PluginInfo, error) {
	if instances == nil {
		return nil, nil
	}
	var plugins []*dynamicplugins.PluginInfo
	for e := instances.Front(); e != nil; e = e.Next() {
		p, ok := e.Value.(*dynamicplugins.PluginInfo)
		if !ok {
			return nil, fmt.Errorf("plugin %q for type %q has a %T in its list instead of a *PluginInfo", name, ptype, e.Value)
		}
		plugins = append(plugins, p)
	}
	return plugins, nil
}
