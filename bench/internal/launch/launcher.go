package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// Opener opens a host that works in a directory.
type Opener func(dir string) (Host, error)

// Serve opens a host, and serves a [Launcher], until standard input ends.
func Serve(open Opener, dir string) error {
	host, err := open(dir)
	if err != nil {
		return err
	}
	l := &Launcher{host: host}
	return errors.Join(proc.Serve(l), l.stop(), host.Close())
}

// Launcher answers the benchmark's questions about a host. Its methods are those of net/rpc; only one is called at a time.
type Launcher struct {
	host     Host
	launched int
	plugins  []Plugin // that stay
	output   Output
}

// First launches a plugin, says how many nanoseconds it took until a call was answered, and stops the plugin.
func (l *Launcher) First(program string, took *int64) error {
	l.launched++
	start := time.Now()
	p, err := l.host.Launch(program, fmt.Sprintf("plugin-%d", l.launched))
	if err != nil {
		return err
	}
	*took = time.Since(start).Nanoseconds()
	return p.Stop()
}

// Many are plugins of one program.
type Many struct {
	Program string
	N       int
}

// Launch launches plugins that stay.
func (l *Launcher) Launch(many Many, _ *proc.None) error {
	for range many.N {
		l.launched++
		p, err := l.host.Launch(many.Program, fmt.Sprintf("plugin-%d", l.launched))
		if err != nil {
			return err
		}
		l.plugins = append(l.plugins, p)
	}
	return nil
}

// Load is a number of calls to the first plugin that stays, by callers of which each makes the next call when the last one is answered.
type Load struct {
	Callers, Calls int
}

// Calls says how many nanoseconds a load took, divided by its calls.
func (l *Launcher) Calls(load Load, each *float64) error {
	ctx := context.Background()
	errs := make([]error, load.Callers)
	var callers sync.WaitGroup
	start := time.Now()
	for i := range errs {
		callers.Go(func() {
			for range load.Calls / load.Callers {
				if errs[i] = l.plugins[0].Call(ctx); errs[i] != nil {
					return
				}
			}
		})
	}
	callers.Wait()
	*each = float64(time.Since(start).Nanoseconds()) / float64(load.Calls/load.Callers*load.Callers)
	return errors.Join(errs...)
}

// Footprint says what the process holds when it is at rest.
func (l *Launcher) Footprint(_ proc.None, f *proc.Footprint) (err error) {
	if err := l.host.Rest(); err != nil {
		return err
	}
	*f, err = proc.ReadFootprint()
	return err
}

// Printing is a program that prints when it is told to on its control socket.
type Printing struct {
	Program, Control string
	Limited          bool
}

// Print starts a program that prints.
func (l *Launcher) Print(p Printing, _ *proc.None) (err error) {
	l.output, err = l.host.Print(p.Program, p.Control, p.Limited)
	return err
}

// Drained is the end of what a program printed.
type Drained struct {
	At       int64 // in nanoseconds of proc.Now
	HandedOn int64 // lines
}

// Drain waits until all is read that the program printed.
func (l *Launcher) Drain(lines int64, d *Drained) (err error) {
	if d.HandedOn, err = l.output.Drain(lines); err != nil {
		return err
	}
	d.At, err = proc.Now()
	return err
}

func (l *Launcher) stop() error {
	errs := make([]error, len(l.plugins))
	for i, p := range l.plugins {
		errs[i] = p.Stop()
	}
	return errors.Join(errs...)
}
