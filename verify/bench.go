package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// socketName is the name that a started plugin is offered for its socket.
const socketName = "plugin.sock"

const placeInstance = "{instance}"

// bench starts the plugin's command, in a plugin directory, as often as the rules need it.
type bench struct {
	target  Target
	options Options
	program string
	driver  string // the program of the driver beside it; empty without one
	base    string // the temporary directory, with all that is not the caller's
	dir     string // the plugin directory
	socket  string // where the plugin may make its socket
	tmp     string
	host    *launchingHost // nil without a handshake
	kubelet *kubelet       // nil for plugins that are found by their sockets
	group   *process.Group
	output  io.Writer

	before    map[string]plugin.SocketID // what was in the plugin directory
	bare      string                     // a socket without registration that appeared; empty without one
	number    int                        // of the instances, by which those differ that run side by side
	instances []*instance
}

func newBench(target Target, options Options) (_ *bench, err error) {
	b := &bench{
		target: target, options: options, dir: target.Dir, socket: target.Socket, output: &serialWriter{w: options.Output}, number: 1,
	}
	if b.program, err = find("the plugin's program", target.Command[0]); err != nil {
		return nil, err
	}
	if len(target.Driver) > 0 {
		if b.driver, err = find("the driver", target.Driver[0]); err != nil {
			return nil, err
		}
	}
	const room = 64 // for the longest path of a socket in it
	if b.base, err = os.MkdirTemp(sock.TempDir(room), "pbverify"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	switch {
	case b.socket != "":
		b.dir = filepath.Dir(b.socket)
	case b.dir == "":
		b.dir = filepath.Join(b.base, "plugins")
		if err := os.Mkdir(b.dir, 0o750); err != nil {
			return nil, err
		}
	}
	if b.socket == "" {
		b.socket = filepath.Join(b.dir, socketName)
	}
	b.tmp = filepath.Join(b.base, "tmp")
	if err := os.Mkdir(b.tmp, 0o700); err != nil {
		return nil, err
	}
	if b.before, err = listing(b.dir); err != nil {
		return nil, fmt.Errorf("cannot read plugin directory %s: %w; create it first", b.dir, err)
	}
	if target.KubeletSock {
		if b.kubelet, err = serveKubelet(b.dir); err != nil {
			return nil, err
		}
	}
	if !target.NoHandshake {
		if b.host, err = serveHost(filepath.Join(b.base, "host.sock"), b.output); err != nil {
			return nil, err
		}
	}
	b.group = &process.Group{}
	return b, nil
}

func find(role, program string) (string, error) {
	path, err := exec.LookPath(program)
	if failed := new(exec.Error); errors.As(err, &failed) {
		err = failed.Err
	}
	if failed := new(fs.PathError); errors.As(err, &failed) {
		err = failed.Err
	}
	if err != nil {
		return "", fmt.Errorf("cannot find %s %s: %w", role, program, err)
	}
	return filepath.Abs(path)
}

func (b *bench) close() error {
	var errs []error
	if b.group != nil {
		now, cancel := context.WithCancel(context.Background())
		cancel() // those that still run have been judged
		errs = append(errs, b.group.Close(now))
		for _, i := range b.instances {
			i.reading.Wait()
			_ = i.handle.Release() // says only that it is released
		}
		b.sweep()
	}
	if b.host != nil {
		b.host.close()
	}
	if b.kubelet != nil {
		b.kubelet.close()
	}
	if err := errors.Join(append(errs, os.RemoveAll(b.base))...); err != nil {
		return fmt.Errorf("cannot clean up after the verification: %w", err)
	}
	return nil
}

func (b *bench) launch() (*instance, error) {
	var driver *instance
	if b.driver != "" {
		var err error
		if driver, err = b.launchOne(b.driver, b.target.Driver, nil); err != nil {
			return nil, err
		}
	}
	var stdin []byte
	if b.host != nil {
		var line strings.Builder
		err := handshake.Write(&line, handshake.Handshake{HostSocket: b.host.path, Ticket: "verify", PluginSocket: b.socket})
		if err != nil {
			return nil, err
		}
		stdin = []byte(line.String())
	}
	i, err := b.launchOne(b.program, b.target.Command, stdin)
	if err != nil {
		if driver != nil {
			err = errors.Join(err, driver.kill())
		}
		return nil, err
	}
	i.driver = driver
	return i, nil
}

func (b *bench) launchOne(program string, command []string, stdin []byte) (*instance, error) {
	place := strings.NewReplacer(
		"{socket}", b.socket, "{dir}", b.dir, "{tmp}", b.tmp, placeInstance, strconv.Itoa(b.number))
	args := make([]string, len(command))
	for i, arg := range command {
		args[i] = place.Replace(arg)
	}
	proc, err := b.group.Start(process.Spec{
		Name: filepath.Base(program), Path: program, Args: args, Env: b.environment(place, stdin != nil),
		Stdin: func() ([]byte, error) { return stdin, nil },
	})
	if err != nil {
		return nil, err
	}
	i, err := newInstance(proc, b.output)
	b.instances = append(b.instances, i)
	return i, err
}

// environment returns the environment of this process without the variables of its own supervisor, and with where the plugin is to serve.
func (b *bench) environment(place *strings.Replacer, shaken bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		key, _, _ := strings.Cut(entry, "=")
		return slices.Contains([]string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", handshake.Env}, key)
	})
	env = append(env, "PATCHBAY_SOCKET="+b.socket, "PATCHBAY_PLUGIN_DIR="+b.dir, "PATCHBAY_TMP_DIR="+b.tmp,
		"PATCHBAY_INSTANCE="+strconv.Itoa(b.number))
	if shaken {
		env = append(env, handshake.Env+"="+handshake.EnvValue)
	}
	for _, entry := range b.target.Env {
		env = append(env, place.Replace(entry))
	}
	return env
}

// appearance describes how and when the socket of a started plugin appeared.
type appearance struct {
	path   string
	id     plugin.SocketID
	after  time.Duration // from the start of the command until it was seen
	window time.Duration // from the first attempt to connect until one succeeded
	// refused is how many attempts failed before.
	refused int
	request *deviceapi.RegisterRequest // by which it was made known, if it was on kubelet.sock
}

// start starts the plugin and waits until its registration socket is there: the first one that answers GetInfo, whatever it answers, or
// the one that was offered. The appearance is that of the socket, also if it is of no use; nil without one.
func (b *bench) start(ctx context.Context) (*instance, *appearance, error) {
	bounded, cancel := context.WithTimeout(ctx, b.options.StartTimeout)
	defer cancel()
	w, err := watchSockets(bounded, b.dir)
	if err != nil {
		return nil, nil, err
	}
	defer w.close()
	if b.kubelet != nil {
		b.kubelet.forget() // what an instance before this one registered
	}
	began := time.Now()
	i, err := b.launch()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot start %s: %w", b.program, err)
	}
	var a *appearance
	if b.kubelet == nil {
		a, err = b.await(bounded, w, i, began)
	} else if a, err = b.awaitRegister(bounded, i, b.options.StartTimeout); a != nil {
		a.after = time.Since(began) - a.window
	}
	switch {
	case err == nil:
		i.served = time.Now()
		return i, a, nil
	case i.hasEnded():
		err = fmt.Errorf("the command ended before it served: %s", i.end())
	case bounded.Err() != nil && a == nil && b.kubelet == nil:
		err = fmt.Errorf("no registration socket appeared in %s within %v%s%s", b.dir, b.options.StartTimeout, i.lastWords(), b.lookedAt(ctx))
	}
	return nil, a, errors.Join(err, i.kill())
}

// startAfter starts an instance that follows another one, which may still run, in a later second than that in which the other was seen to
// serve: plugins that name their sockets by the time mostly use seconds, and hosts take longer to restart a plugin.
func (b *bench) startAfter(ctx context.Context, first *instance) (*instance, *appearance, error) {
	pause(ctx, time.Until(first.served.Truncate(time.Second).Add(time.Second)), nil)
	return b.start(ctx)
}

// startBeside starts an instance that runs at the same time as another one; see startAfter.
func (b *bench) startBeside(ctx context.Context, first *instance) (*instance, *appearance, error) {
	b.number++
	return b.startAfter(ctx, first)
}

func (b *bench) await(ctx context.Context, w *socketWatch, i *instance, began time.Time) (*appearance, error) {
	var doubtful *appearance
	for {
		var path string
		select {
		case path = <-w.appeared:
		case <-i.proc.Done():
			return doubtful, errEnded
		case <-ctx.Done():
			if doubtful != nil && !i.hasEnded() {
				return doubtful, nil
			}
			return doubtful, ctx.Err()
		}
		if b.target.Socket != "" && path != b.target.Socket {
			continue
		}
		a, err := meet(ctx, path, i)
		if a == nil {
			continue // gone already
		}
		a.after = time.Since(began) - a.window
		if err != nil {
			return a, err
		}
		switch err := identify(ctx, path, b.options.CallTimeout); {
		case err == nil || path == b.socket:
			return a, nil
		case status.Code(err) == codes.Unimplemented:
			b.bare = path // a socket for something else
		case doubtful == nil:
			doubtful = a
		}
	}
}

// meet connects to a socket that has just appeared. It returns no appearance if the socket was removed.
func meet(ctx context.Context, path string, i *instance) (*appearance, error) {
	info, err := sock.Stat(path)
	if err != nil {
		return nil, err
	}
	a := &appearance{path: path, id: info.ID}
	first := time.Now()
	for {
		conn, err := sock.Dial(ctx, path)
		a.window = time.Since(first)
		switch {
		case err == nil:
			_ = conn.Close() // nothing was sent
			return a, nil
		case sock.IsBusy(err):
			return a, nil
		case sock.IsGone(err):
			return nil, err
		case !sock.IsRefused(err):
			return a, fmt.Errorf("cannot connect to %s: %w", path, err)
		}
		a.refused++
		switch pause(ctx, time.Millisecond, i.proc.Done()); { // nothing tells of a listen(2)
		case i.hasEnded():
			return a, errEnded
		case ctx.Err() != nil:
			return a, fmt.Errorf("nobody listens on %s, although the socket is there", path)
		}
	}
}

func identify(ctx context.Context, path string, timeout time.Duration) error {
	conn, err := dial(path, timeout, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
	return err
}

var errEnded = errors.New("the command ended")

// socketWatch reports the sockets that appear in a plugin directory, including subdirectories and without hidden names, as hosts see them.
type socketWatch struct {
	appeared chan string // their paths; one whose mode changes comes again
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

func watchSockets(ctx context.Context, dir string) (*socketWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &socketWatch{appeared: make(chan string), cancel: cancel}
	scanned := make(chan struct{})
	watcher, err := dirwatch.New(func(u dirwatch.Update) {
		select {
		case <-scanned:
		default:
			close(scanned)
			return // those were there before
		}
		for _, fact := range u.Facts {
			if !fact.Present {
				continue
			}
			select {
			case w.appeared <- fact.Path:
			case <-ctx.Done():
			}
		}
	}, dirwatch.Root{Path: dir})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot watch plugin directory %s: %w", dir, err)
	}
	w.running.Go(func() { _ = watcher.Run(ctx) }) // it ends with ctx, and nothing else
	select {
	case <-scanned:
	case <-ctx.Done():
	}
	return w, nil
}

func (w *socketWatch) close() {
	w.cancel()
	w.running.Wait()
}

// left lists what is in the plugin directory and was not there before the verification, sockets first.
func (b *bench) left() (sockets, others []string) {
	now, err := listing(b.dir)
	if err != nil {
		return nil, nil // the directory is gone, and all in it
	}
	for path, id := range now {
		if old, ok := b.before[path]; ok && old == id || b.kubelet != nil && b.kubelet.made(path) {
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

// sweep removes the sockets that ended instances left, so that one failure is not the next rule's as well.
func (b *bench) sweep() {
	sockets, _ := b.left()
	for _, path := range sockets {
		_ = os.Remove(path) // a start that fails because of it says so
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

// serialWriter serialises writes and never fails, so that the plugin does not notice an error.
type serialWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *serialWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = callback.Call(func() error { _, err := s.w.Write(p); return err })
	return len(p), nil
}

// differs reports whether each instance gets its own command line or environment.
func (b *bench) differs() bool {
	return slices.ContainsFunc(slices.Concat(b.target.Command, b.target.Env, b.target.Driver), func(text string) bool {
		return strings.Contains(text, placeInstance)
	})
}
