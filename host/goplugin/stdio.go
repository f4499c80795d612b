package goplugin

import (
	"fmt"
	"os"
	"sync"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/launch/output"
)

// stdio brings what the library hands over of a plugin's output into its log, through a pipe because that is what a log reads. The library
// replaces the plugin's standard output and error when it has started, and sends what is printed from then on as calls.
type stdio struct {
	readEnd, write *os.File
	reading        sync.WaitGroup
}

func (s *stdio) open() (err error) {
	if s.readEnd, s.write, err = os.Pipe(); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	return nil
}

func (s *stdio) read(log *host.Log, source output.Source) {
	s.reading.Go(func() { _ = log.ReadFrom(s.readEnd, source) }) // a pipe of this process can be read
}

// close waits until all that was written is in the log. It may be called after an open that failed.
func (s *stdio) close() {
	_ = s.write.Close()
	s.reading.Wait()
	_ = s.readEnd.Close()
}
