package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Appearance describes how and when the socket of a started plugin appeared.
type Appearance struct {
	Path    string
	ID      plugin.SocketID
	After   time.Duration              // from the start of the command until the socket appeared
	Window  time.Duration              // from the first attempt to connect to the last
	Refused int                        // the number of refused attempts
	Request *deviceapi.RegisterRequest // the registration on kubelet.sock; nil without one
}

func (r *Runner) await(ctx context.Context, appeared <-chan string, i *Instance, began time.Time) (*Appearance, error) {
	var doubtful *Appearance
	for {
		var path string
		select {
		case path = <-appeared:
		case <-i.proc.Done():
			return doubtful, errEnded
		case <-ctx.Done():
			if doubtful != nil && !i.HasEnded() {
				return doubtful, nil
			}
			return doubtful, ctx.Err()
		}
		if !r.anyPath && path != r.Socket {
			continue
		}
		a, err := meet(ctx, path, i)
		if a == nil {
			continue // it was removed already
		}
		a.After = time.Since(began) - a.Window
		if err != nil {
			return a, err
		}
		switch err := identify(ctx, path, r.CallTimeout); {
		case err == nil || path == r.Socket:
			return a, nil
		case status.Code(err) == codes.Unimplemented:
			r.bare = path // no registration service
		case doubtful == nil:
			doubtful = a
		}
	}
}

// meet connects to a socket that has just appeared, again while the socket refuses. The appearance is nil if the socket was removed.
func meet(ctx context.Context, path string, i *Instance) (*Appearance, error) {
	info, err := sock.Stat(path)
	if err != nil {
		return nil, err
	}
	a := &Appearance{Path: path, ID: info.ID}
	first := time.Now()
	for {
		conn, err := sock.Dial(ctx, path)
		a.Window = time.Since(first)
		switch {
		case err == nil:
			_ = conn.Close()
			return a, nil
		case sock.IsBusy(err):
			return a, nil
		case sock.IsGone(err):
			return nil, err
		case !sock.IsRefused(err):
			return a, fmt.Errorf("cannot connect to %s: %w", path, err)
		}
		a.Refused++
		switch Pause(ctx, time.Millisecond, i.proc.Done()); { // there is no notification of listen(2)
		case i.HasEnded():
			return a, errEnded
		case ctx.Err() != nil:
			return a, fmt.Errorf("nobody listens on %s, although the socket is there", path)
		}
	}
}

func identify(ctx context.Context, path string, timeout time.Duration) error {
	conn, err := grpcsock.Dial(path)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
	return err
}

var errEnded = errors.New("the command ended")

// watchSockets sends the paths of the sockets that appear in a plugin directory and its subdirectories, except hidden ones, as a host finds
// them. A change of the mode repeats one. stop ends that.
func watchSockets(ctx context.Context, dir string) (appeared <-chan string, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	paths, scanned := make(chan string), make(chan struct{})
	watcher, err := dirwatch.New(func(u dirwatch.Update) {
		select {
		case <-scanned:
		default:
			close(scanned)
			return // these sockets were there before the start
		}
		for _, fact := range u.Facts {
			if !fact.Present {
				continue
			}
			select {
			case paths <- fact.Path:
			case <-ctx.Done():
			}
		}
	}, dirwatch.Root{Path: dir})
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("cannot watch plugin directory %s: %w", dir, err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = watcher.Run(ctx) }) // until ctx ends
	select {
	case <-scanned:
	case <-ctx.Done():
	}
	return paths, func() { cancel(); running.Wait() }, nil
}

// Leftovers returns the paths of the files in the plugin directory that were not there before the first start.
func (r *Runner) Leftovers() (sockets, others []string) {
	now, err := listing(r.Dir)
	if err != nil {
		return nil, nil // the directory was removed
	}
	for path, id := range now {
		if old, ok := r.before[path]; ok && old == id || r.Kubelet != nil && r.Kubelet.made(path) {
			continue
		}
		if info, err := sock.Stat(path); err == nil && info.IsSocket() {
			sockets = append(sockets, path)
		} else if err == nil {
			others = append(others, path)
		}
	}
	slices.Sort(sockets)
	slices.Sort(others)
	return sockets, others
}

// Sweep removes the sockets among the leftovers, so that a failure of one rule does not fail the next one.
func (r *Runner) Sweep() {
	sockets, _ := r.Leftovers()
	for _, path := range sockets {
		_ = os.Remove(path) // if it stays, the next start fails and reports it
	}
}

const maxListed = 10_000

func listing(dir string) (map[string]plugin.SocketID, error) {
	all := map[string]plugin.SocketID{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path == dir || err != nil && errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(all) == maxListed {
			return fs.SkipAll
		}
		if info, err := sock.Stat(path); err == nil {
			all[path] = info.ID
		}
		return nil
	})
	return all, err
}

// lookedAt describes the socket that appeared instead of a registration socket; empty if none did.
func (r *Runner) lookedAt(ctx context.Context) string {
	if r.bare == "" {
		return ""
	}
	if what := r.Recognise(ctx, r.bare); what != "" {
		return "; " + r.bare + " is the endpoint of " + what
	}
	return "; " + r.bare + " has no registration service"
}
