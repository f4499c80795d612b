package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// Type is the type of all plugins.
const Type = "csi-node"

// Name is the name of plugin i. Numbers above ten thousand are those of plugins that come and go.
func Name(i int) string { return fmt.Sprintf("driver-%06d.csi.example.com", i) }

// AllocID is the instance of plugin i.
func AllocID(i int) string { return fmt.Sprintf("6a0c3c2e-7a52-4d0b-9b0e-%012d", i) }

// Version is the version of all plugins.
const Version = "1.2.3"

// SocketPath is the socket of plugin i.
func SocketPath(i int) string { return fmt.Sprintf("/run/patchbay/plugins/driver-%06d/csi.sock", i) }

// Options are the options of all plugins. Nobody changes them.
var Options = map[string]string{"versions": "1.0.0,1.1.0"}

// Subject is a registry that is measured. Its methods are safe for concurrent use.
type Subject interface {
	// Register registers plugin i, and Deregister takes it out.
	Register(i int) error
	Deregister(i int) error
	// Dispense makes a client of the plugin of a name.
	Dispense(name string) error
	// Wait waits until plugin i is registered.
	Wait(ctx context.Context, i int) error
	// Subscribe calls receive, from one goroutine, for each change after it has returned. With a nil receive it is a subscriber that
	// never reads.
	Subscribe(ctx context.Context, receive func())
	// List counts the plugins by listing all of them.
	List() int
	Close() error
}

// Opener opens a subject, whose state is in the directory; with none it is in memory only.
type Opener func(dir string) (Subject, error)

// Incomplete is a [Subject] that can do nothing.
type Incomplete struct{}

var errCannot = errors.New("this contestant cannot do that")

// Register implements [Subject].
func (Incomplete) Register(int) error { return errCannot }

// Deregister implements [Subject].
func (Incomplete) Deregister(int) error { return errCannot }

// Dispense implements [Subject].
func (Incomplete) Dispense(string) error { return errCannot }

// Wait implements [Subject].
func (Incomplete) Wait(context.Context, int) error { return errCannot }

// Subscribe implements [Subject].
func (Incomplete) Subscribe(context.Context, func()) {}

// List implements [Subject].
func (Incomplete) List() int { return 0 }

// Close implements [Subject].
func (Incomplete) Close() error { return nil }

// Serve opens a subject, and serves a [Registry], until standard input ends.
func Serve(open Opener, dir string) error {
	start := time.Now()
	subject, err := open(dir)
	if err != nil {
		return err
	}
	return errors.Join(proc.Serve(&Registry{subject, time.Since(start)}), subject.Close())
}
