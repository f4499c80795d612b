package bench

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/host"
)

// bareSocketpair launches plugins that inherit a socket, with fork and exec alone. A call is one byte there and back.
type bareSocketpair struct{ launch.Incomplete }

func openBareSocketpair(string) (launch.Host, error) { return bareSocketpair{}, nil }

// Launch implements [launch.Host].
func (bareSocketpair) Launch(program, name string) (launch.Plugin, error) {
	return inherit(func(theirs *os.File) (func() error, error) {
		cmd := command(program, name)
		cmd.ExtraFiles = []*os.File{theirs}
		return func() error { return end(cmd) }, cmd.Start()
	})
}

// hostSocketpair is the same with [host.Host].
type hostSocketpair struct {
	launch.Incomplete

	host *host.Host
}

func openHostSocketpair(string) (launch.Host, error) {
	h, err := newHost()
	return hostSocketpair{host: h}, err
}

// Launch implements [launch.Host].
func (h hostSocketpair) Launch(program, name string) (launch.Plugin, error) {
	return inherit(func(theirs *os.File) (func() error, error) {
		return launchSpec(h.host, host.Spec{Name: name, Args: []string{program, name}, ExtraFiles: []*os.File{theirs}})
	})
}

// Close implements [launch.Host].
func (h hostSocketpair) Close() error { return closeHost(h.host) }

// inherited is a plugin at the other end of a socket pair.
type inherited struct {
	mu   sync.Mutex // held by the call that is made
	ours *os.File
	stop func() error
}

// inherit starts a plugin that inherits a socket, and returns when a call is answered.
func inherit(start func(theirs *os.File) (stop func() error, err error)) (launch.Plugin, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	stop, err := start(theirs)
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	p := &inherited{ours: ours, stop: stop}
	if err := p.Call(context.Background()); err != nil {
		return nil, err
	}
	return p, nil
}

// Call implements [launch.Plugin].
func (p *inherited) Call(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := []byte{1}
	if _, err := p.ours.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(p.ours, b)
	return err
}

// Stop implements [launch.Plugin].
func (p *inherited) Stop() error { return errors.Join(p.ours.Close(), p.stop()) }
