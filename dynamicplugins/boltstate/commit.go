package boltstate

import (
	"fmt"
	"sync/atomic"

	"go.etcd.io/bbolt"
)

// group is records that are written in one transaction.
type group struct {
	records []record // guarded by Store.mu
	done    chan struct{}
	err     error        // set before done is closed
	untold  atomic.Int64 // callers that do not know of err yet; set before done is closed
}

// commit makes a record durable. One that arrives while nothing is written is written at once; those that arrive while a transaction
// is under way form a group, which the caller of the first of them writes next.
//
// The transaction of a group begins when all callers of the one before have been told. They are about to run anyway, a transaction
// that runs among them waits behind all of them whenever one of its writes has ended, and what they have to write next is in it.
//
// All records of a group fail together, so a record must not fail for a reason of its own.
func (s *Store) commit(r record) error {
	g, first, err := s.join(r)
	if err != nil {
		return err
	}
	defer s.users.Done()
	if first {
		s.writing.Lock()
		s.write(g)
	} else {
		<-g.done
	}
	err = g.err
	if g.untold.Add(-1) == 0 {
		s.writing.Unlock()
	}
	return err
}

// join does what use does, and puts a record into the next group. It reports whether the group is new: its caller is to write it then.
func (s *Store) join(r record) (g *group, first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(); err != nil {
		return nil, false, err
	}
	first = s.next == nil
	if first {
		s.next = &group{done: make(chan struct{})}
	}
	s.next.records = append(s.next.records, r)
	return s.next, first, nil
}

// write writes a group, which records may join until all that are there have been put into the transaction. The caller holds
// s.writing, which the last caller of the group releases.
func (s *Store) write(g *group) {
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
		g.err = fmt.Errorf("cannot write state file %s: %w", s.path, err)
	}
	s.mu.Lock()
	if s.next == g { // the transaction failed early
		s.next = nil
	}
	if err != nil {
		s.unsaved(g.records)
	}
	s.mu.Unlock()
	g.untold.Store(int64(len(g.records)))
	close(g.done)
}

// take returns the records of g after the first n. If there are none, it closes g to further records.
func (s *Store) take(g *group, n int) []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(g.records) == n {
		s.next = nil
	}
	return g.records[n:]
}
