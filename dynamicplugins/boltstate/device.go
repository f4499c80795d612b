package boltstate

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/internal/callback"
)

type database struct {
	bolt *bbolt.DB
	file *os.File // opened for bbolt, which closes it
}

// close closes the file after a failed transaction, whose error is the one to report.
func (d *database) close() { _ = d.bolt.Close() }

// newest returns the valid meta page with the newest transaction.
func (d *database) newest() (boltMeta, error) {
	info, err := d.file.Stat()
	if err != nil {
		return boltMeta{}, err
	}
	return readMeta(d.file, info.Size())
}

// transact runs fn in a transaction, commits it if it is writable, and returns its ID.
func (d *database) transact(writable bool, fn func(*bbolt.Tx) error) (id uint64, err error) {
	// bbolt reads a mapped file. A page that the device cannot read is a fault, which ends a program unless SetPanicOnFault makes it a panic.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		fault, ok := p.(interface {
			error
			Addr() uintptr
		})
		switch {
		case ok:
			err = fmt.Errorf("its device does not give the page at %#x of the memory to which it is mapped", fault.Addr())
		case p != nil:
			panic(p)
		}
	}()
	// A fault within Begin would leave bbolt's locks held. Begin reads only the meta pages, so read them first.
	if _, err := d.newest(); err != nil {
		return 0, err
	}
	tx, err := d.bolt.Begin(writable)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // has no effect after Commit
	if err := fn(tx); err != nil || !writable {
		return 0, err
	}
	id = uint64(tx.ID())
	// gofail: var boltstateCommit string
	// return 0, errors.New(boltstateCommit)

	// gofail: var boltstateSync string
	// return 0, errors.Join(tx.Commit(), errors.New(boltstateSync))
	return id, tx.Commit()
}

func (s *Store) view(fn func(*bbolt.Tx) error) error {
	s.access.RLock()
	defer s.access.RUnlock()
	if s.db == nil {
		return s.failed
	}
	_, err := s.db.transact(false, fn)
	return err
}

// update runs fn in a transaction. If it returns nil, the transaction is on the device. After an error, the file is restored to the last
// successful transaction, immediately or, if the device fails, before the next transaction. The caller holds s.writing.
//
// bbolt alone does not guarantee that. If the sync of a meta page fails, the page in memory looks written, and bbolt continues from the
// failed transaction. The kernel does not write such a page again, so the device may have only the meta page before it, and the next
// transaction would overwrite that one, which is the only valid one.
func (s *Store) update(fn func(*bbolt.Tx) error) error {
	err := s.tryUpdate(fn)
	if err == nil {
		return nil
	}
	s.access.Lock()
	if s.db != nil {
		s.db.close()
		s.db = nil
	}
	s.failed = err
	s.access.Unlock()
	_ = s.reopen() // tryUpdate repeats it if it fails
	if s.onFailure != nil {
		told := callback.Call(func() error { s.onFailure(err); return nil })
		if told != nil {
			err = fmt.Errorf("%w; the function of OnFailure did not return: %w", err, told)
		}
	}
	return err
}

func (s *Store) tryUpdate(fn func(*bbolt.Tx) error) error {
	// gofail: var boltstateBegin string
	// return errors.New(boltstateBegin)
	if s.db == nil {
		if err := s.reopen(); err != nil {
			return err
		}
	}
	if !s.settled {
		if err := s.db.settle(s.last); err != nil {
			return err
		}
		s.settled = true
	}
	id, err := s.db.transact(true, fn)
	if err == nil {
		s.last = id
	}
	return err
}

// reopen opens the file again after a failed transaction, and reverts that transaction. The caller holds s.writing.
func (s *Store) reopen() error {
	// gofail: var boltstateReopen string
	// return errors.New(boltstateReopen)
	if err := inspect(s.path); err != nil {
		return err
	}
	for {
		db, err := openDB(s.path, false)
		if err != nil {
			return err
		}
		meta, err := db.newest()
		switch {
		case err != nil:
		case meta.transaction == s.last+1:
			// bbolt has read the pages of the failed transaction, so the file must be opened once more.
			if err = db.settle(s.last); err == nil {
				db.close()
				continue
			}
		case meta.transaction != s.last:
			err = &fileError{s.path, ErrReplaced, "it is not the one that this process wrote last", "restart the process to use it as it is"}
		}
		if err != nil {
			db.close()
			return err
		}
		s.access.Lock()
		s.db, s.settled = db, false
		s.access.Unlock()
		return nil
	}
}

// settle makes a transaction the last one of the file, on the device as well as in memory. It overwrites the meta page of a later
// transaction with that of this one and the ID before it, as bbolt does when it copies a file. If there is no later one, it writes the meta
// page again, because the process that wrote it may have ended before it was on the device.
func (d *database) settle(transaction uint64) error {
	// gofail: var boltstateSettle string
	// return errors.New(boltstateSettle)
	newest, err := d.newest()
	if err != nil {
		return err
	}
	pageSize := int64(newest.pageSize)
	own := int64(0)
	if meta, err := readMetaAt(d.file, 0); err != nil || meta.transaction != transaction {
		own = 1
	}
	var page [pageHeaderSize + metaSize]byte
	if _, err := d.file.ReadAt(page[:], own*pageSize); err != nil {
		return err
	}
	meta := page[pageHeaderSize:]
	if order.Uint64(meta[48:]) != transaction {
		return errors.New("the meta page of its last transaction is not there")
	}
	to := own
	if newest.transaction != transaction {
		to = 1 - own
		order.PutUint64(page[:], uint64(to))
		order.PutUint64(meta[48:], transaction-1)
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:metaSize-8])
		order.PutUint64(meta[metaSize-8:], sum.Sum64())
	}
	if _, err := d.file.WriteAt(page[:], to*pageSize); err != nil {
		return err
	}
	return syncFile(d.file)
}

// checkKey is in the meta bucket during [Store.Check].
var checkKey = []byte("check")

// unsaved records the size of records that could not be written. The caller holds s.writing.
func (s *Store) unsaved(records []record) {
	size := 0
	for _, r := range records {
		size += len(r.key) + len(r.value)
	}
	s.lost = max(s.lost, size)
}

// OnFailure sets a function that is called with the error of every change that fails because of the file or its device, before the change
// returns. No other change can run during f, so it must not block or use the Store. Call OnFailure before any other method.
func (s *Store) OnFailure(f func(error)) { s.onFailure = f }

// Check returns nil if changes can be made durable. After a failure it opens the file again, and writes and removes as many bytes as could
// not be written before. It is for callers that wait for the device and have nothing to write; changes open the file again too.
func (s *Store) Check() error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.users.Done()
	s.writing.Lock()
	defer s.writing.Unlock()
	lost := s.lost
	err := s.update(func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Put(checkKey, make([]byte, lost)) })
	if err == nil {
		err = s.update(func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Delete(checkKey) })
	}
	if err != nil {
		return s.cannotWrite(err)
	}
	s.lost = 0
	return nil
}
