package launch

import (
	"context"
	"errors"
)

// Host launches plugins. Only one of its methods is called at a time.
type Host interface {
	// Launch starts a program as a plugin, which has the name as its argument, and returns when a call is answered: by the plugin, or
	// by the host if it is the plugin that calls. No two plugins have the same name at the same time.
	Launch(program, name string) (Plugin, error)
	// Print starts a program that prints. Limited says whether the host limits how much is kept of that, if it can.
	Print(program, control string, limited bool) (Output, error)
	// Rest returns when the host has nothing more to begin for the plugins that run.
	Rest() error
	// Close returns when nothing is left of the host and its plugins.
	Close() error
}

// Plugin is a plugin that runs.
type Plugin interface {
	// Call makes a call to the plugin. It is safe for concurrent use.
	Call(ctx context.Context) error
	// Stop returns when nothing is left of the plugin.
	Stop() error
}

// Output is what a program prints.
type Output interface {
	// Drain waits until this many lines were printed and are read, and the host has handed on all that it hands on. It says how many
	// lines that is.
	Drain(lines int64) (handedOn int64, err error)
}

// Incomplete is a [Host] and a [Plugin] that can do nothing.
type Incomplete struct{}

var errCannot = errors.New("this contestant cannot do that")

// Launch implements [Host].
func (Incomplete) Launch(string, string) (Plugin, error) { return nil, errCannot }

// Print implements [Host].
func (Incomplete) Print(string, string, bool) (Output, error) { return nil, errCannot }

// Rest implements [Host].
func (Incomplete) Rest() error { return nil }

// Close implements [Host].
func (Incomplete) Close() error { return nil }

// Call implements [Plugin].
func (Incomplete) Call(context.Context) error { return errCannot }

// Stop implements [Plugin].
func (Incomplete) Stop() error { return nil }
