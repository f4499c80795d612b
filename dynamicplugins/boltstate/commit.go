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
	if err := s.use(); err != nil {
		return err
	}
	defer s.users.Done()

	s.mu.Lock()
	g := s.next
	first := g == nil
	if first {
		g = &group{done: make(chan struct{})}
		s.next = g
	}
	g.records = append(g.records, r)
	s.mu.Unlock()

	if first {
		s.writing.Lock()
		s.write(g)
	} else {
		<-g.done
	}
	err := g.err
	if g.untold.Add(-1) == 0 {
		s.writing.Unlock()
	}
	return err
}

// write writes a group, which records may join until all that are there have been put into the transaction. The caller holds
// s.writing, which the last caller of the group releases.
func (s *Store) write(g *group) {
	err := s.db.Update(func(tx *bbolt.Tx) error {
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
