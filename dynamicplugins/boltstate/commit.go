package boltstate

import (
	"fmt"
	"runtime"

	"go.etcd.io/bbolt"
)

// group is changes that are written in one transaction.
type group struct {
	changes []func(*bbolt.Tx) error // guarded by Store.mu
	done    chan struct{}
	err     error // set before done is closed
}

// commit makes a change durable. A change that arrives while nothing is written is written at once; those that arrive while a
// transaction is under way form a group, which the first of them writes as soon as that transaction has ended.
//
// All changes of a group fail together, so a change must not fail for a reason of its own.
func (s *Store) commit(change func(*bbolt.Tx) error) error {
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
	g.changes = append(g.changes, change)
	s.mu.Unlock()

	if first {
		s.writing.Lock()
		s.write(g)
		close(g.done)
		s.writing.Unlock()
	} else {
		<-g.done
	}
	if g.err != nil {
		return fmt.Errorf("cannot write state file %s: %w", s.path, g.err)
	}
	return nil
}

// write writes a group. Changes may join it until all that are there have been put into the transaction, so callers whose change
// was in the transaction before, and who have another one, join while those of others are put. The caller holds s.writing.
func (s *Store) write(g *group) {
	open := true
	g.err = s.db.Update(func(tx *bbolt.Tx) error {
		for put := 0; ; {
			var changes []func(*bbolt.Tx) error
			if changes, open = s.take(g, put); !open {
				return nil
			}
			put += len(changes)
			for _, change := range changes {
				if err := change(tx); err != nil {
					return err
				}
			}
		}
	})
	if open { // the transaction failed early
		s.mu.Lock()
		s.next = nil
		s.mu.Unlock()
	}
}

// take returns the changes of g after the first n. If there are none, it closes g to further changes and reports false.
func (s *Store) take(g *group, n int) (changes []func(*bbolt.Tx) error, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(g.changes) == n && n > 1 {
		// Callers that are about to join are runnable: they run first.
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
	if len(g.changes) > n {
		return g.changes[n:], true
	}
	s.next = nil
	return nil, false
}
