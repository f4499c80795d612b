package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/plugin"
)

// programInterval is the interval for checking whether a program has changed, if its plugin cannot be started before that.
const programInterval = time.Second

// executable identifies a version of a program without reading it. The zero value is a missing program.
type executable struct {
	path string
	info os.FileInfo
}

// program returns the program that a launch would execute now.
func (p Plugin) program() executable {
	path, err := sealedexec.Find(p.Args[0], p.Dir)
	if err != nil {
		return executable{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return executable{}
	}
	return executable{path, info}
}

// tried returns the program that is about to be launched, if its digest is checked. Otherwise the result is not needed.
func (p Plugin) tried() executable {
	if p.SHA256 == "" {
		return executable{}
	}
	return p.program()
}

func (a executable) isSame(b executable) bool {
	if a.info == nil || b.info == nil {
		return a.info == nil && b.info == nil
	}
	return a.path == b.path && os.SameFile(a.info, b.info) && a.info.Size() == b.info.Size() && a.info.Mode() == b.info.Mode() &&
		a.info.ModTime().Equal(b.info.ModTime())
}

// checkProgram returns an error if the plugin has no program that can be executed.
func (p Plugin) checkProgram() error {
	path, err := sealedexec.Find(p.Args[0], p.Dir)
	if err == nil {
		err = sealedexec.Check(path)
	}
	if err != nil {
		return fmt.Errorf("cannot launch plugin %s: %w: %w; install it or correct the command: it is started when the program is there",
			p.Name, ErrProgram, err)
	}
	return nil
}

// checkPrograms returns an error that names the plugins that have no program that can be executed.
func checkPrograms(plugins []Plugin) error {
	var missing []error
	for _, p := range plugins {
		if err := p.checkProgram(); err != nil {
			missing = append(missing, err)
		}
	}
	return errors.Join(missing...)
}

// blocked returns the error of a launch, as a [supervise.BlockedError] if every launch fails until the program changes.
func (p Plugin) blocked(err error, tried executable) error {
	hasChanged := func() bool { return !p.program().isSame(tried) }
	switch missing := p.checkProgram(); {
	case missing != nil:
		err, hasChanged = missing, func() bool { return p.checkProgram() == nil }
	case errors.Is(err, plugin.ErrDigest):
		err = fmt.Errorf("%w; it is started when the program changes", err)
	default:
		return err
	}
	return &supervise.BlockedError{Err: err, AwaitChange: func(ctx context.Context) {
		for !hasChanged() && backoff.Pause(ctx, programInterval) {
			continue // there may be no events for changes on a network file system
		}
	}}
}
