// Package statetest is the conformance suite for implementations of dynamicplugins.StateStorage: if you write one, run [Test] on it.
//
// It checks what the registry relies on: a stored state comes back complete and in order, immediately and after the storage was reopened,
// and changes of single plugins, if the storage supports them, add up. It cannot check that a state survives a crash; that takes a process
// to kill.
package statetest

import (
	"errors"
	"io"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// Open opens the storage that is kept in the directory dir, and makes it if there is none. Opening the same directory again, after
// the storage was closed if it is an io.Closer, opens the same storage.
type Open func(dir string) (dynamicplugins.StateStorage, error)

// Test runs the suite, each case as a subtest in a directory of its own.
func Test(t *testing.T, open Open) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := &session{open: open, dir: t.TempDir()}
			err := s.run(c)
			switch {
			case errors.Is(err, errNotApplicable):
				t.Skip(err)
			case err != nil:
				t.Error(err)
			}
		})
	}
}

type session struct {
	open Open
	dir  string
	dynamicplugins.StateStorage
}

func (s *session) run(c testCase) (err error) {
	if s.StateStorage, err = s.open(s.dir); err != nil {
		return err
	}
	if err := c.run(s); err != nil {
		_ = s.close() // the failure of the case says more
		return err
	}
	return s.close()
}

func (s *session) close() error {
	if c, ok := s.StateStorage.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
