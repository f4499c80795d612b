// Package statetest is the conformance suite for implementations of dynamicplugins.StateStorage: if you write one, run [Test] on it.
//
// It checks what the registry relies on: a stored state comes back complete and in order, immediately and after the storage was reopened,
// and changes of single plugins, if the storage supports them, add up. It cannot check that a state survives a crash; that takes a process
// to kill.
package statetest

import (
	"io"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// Open opens the storage that is kept in the directory dir, and makes it if there is none. Opening the same directory again, after
// the storage was closed if it is an io.Closer, opens the same storage.
type Open func(dir string) (dynamicplugins.StateStorage, error)

// Test runs the suite, each case as a subtest in a directory of its own.
func Test(t *testing.T, open Open) {
	for name, run := range cases {
		t.Run(name, func(t *testing.T) { test(t, open, run) })
	}
}

func test(t testing.TB, open Open, run func(s *session)) {
	s := &session{t: t, open: open, dir: t.TempDir()}
	s.reopen()
	defer s.close()
	run(s)
}

// session is a storage under test. Its methods end the test if the storage fails.
type session struct {
	t    testing.TB
	open Open
	dir  string
	dynamicplugins.StateStorage
}

func (s *session) reopen() {
	s.t.Helper()
	s.close()
	var err error
	s.StateStorage, err = s.open(s.dir)
	s.ok(err)
}

func (s *session) close() {
	if c, ok := s.StateStorage.(io.Closer); ok {
		if err := c.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *session) ok(err error) {
	if err != nil {
		s.t.Helper()
		s.t.Fatal(err)
	}
}
