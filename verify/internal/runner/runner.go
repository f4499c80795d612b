// Package runner starts a plugin's program for the conformance rules, and plays its host: it offers a path for the plugin's socket, waits
// until the socket appears, and reports what the plugin leaves behind.
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// PlaceInstance stands for the number of the instance in a command.
	PlaceInstance = "{instance}"
	// socketName is the file name of the socket in {socket}.
	socketName = "plugin.sock"
)

// Runner starts a plugin's command in a plugin directory. Set the first group of fields, then call Open. It is not safe for concurrent use.
type Runner struct {
	// Command and Driver are the plugin's program and that of the driver that it registers, with their arguments; Driver may be empty.
	Command, Driver []string
	// Env is added to the environment of both.
	Env []string
	// Socket is the path at which the plugin creates its socket; empty for any in Dir. Dir is the plugin directory. If it is empty, it is
	// that of Socket, or else a temporary one.
	Socket, Dir string
	// NoHandshake starts the command without a handshake. KubeletSock serves kubelet.sock, and waits for the plugin to register there.
	NoHandshake, KubeletSock bool
	// StartTimeout bounds how long a start takes, CallTimeout the call of GetInfo with which a registration socket is found.
	StartTimeout, CallTimeout time.Duration
	// Output receives what the processes print.
	Output io.Writer
	// Recognise describes the service at a socket without a registration service, and what to do, for an error; empty if it is unknown.
	Recognise func(ctx context.Context, path string) string

	// Open sets these, and the empty ones of Socket and Dir.
	Programs []string // the paths of the command's program and the driver's
	Base     string   // the temporary directory
	Kubelet  *Kubelet // nil without KubeletSock

	// Instances are all that were started, including those that have exited.
	Instances []*Instance

	anyPath  bool // the plugin chooses the path of its socket
	tmp      string
	group    *process.Group
	stopHost func() // nil without a handshake
	output   io.Writer

	before map[string]plugin.SocketID // the files in the plugin directory before the first start
	bare   string                     // a socket without a registration service that appeared; empty if none did
	number int                        // the value of {instance}
}

// Open finds the programs, creates the directories and serves the sockets of the host. The caller calls Close unless it returns an error.
func (r *Runner) Open() (err error) {
	r.output, r.number, r.anyPath = &serialWriter{w: r.Output}, 1, r.Socket == ""
	if err := r.findPrograms(); err != nil {
		return err
	}
	const room = 64 // for the longest path of a socket in it
	if r.Base, err = os.MkdirTemp(sock.TempDir(room), "pbverify"); err != nil {
		return err
	}
	if err = r.prepare(); err != nil {
		return errors.Join(err, r.Close())
	}
	r.group = &process.Group{}
	return nil
}

func (r *Runner) prepare() (err error) {
	r.tmp = filepath.Join(r.Base, "tmp")
	if err := os.Mkdir(r.tmp, 0o700); err != nil {
		return err
	}
	switch {
	case !r.anyPath:
		r.Dir = filepath.Dir(r.Socket)
	case r.Dir == "":
		r.Dir = filepath.Join(r.Base, "plugins")
		if err := os.Mkdir(r.Dir, 0o750); err != nil {
			return err
		}
	}
	if r.anyPath {
		r.Socket = filepath.Join(r.Dir, socketName)
	}
	if r.before, err = listing(r.Dir); err != nil {
		return fmt.Errorf("cannot read plugin directory %s: %w; create it first", r.Dir, err)
	}
	if r.KubeletSock {
		if r.Kubelet, err = serveKubelet(r.Dir); err != nil {
			return err
		}
	}
	if !r.NoHandshake {
		r.stopHost, err = serveHost(r.hostSocket(), r.output)
	}
	return err
}

func (r *Runner) hostSocket() string { return filepath.Join(r.Base, "host.sock") }

func (r *Runner) findPrograms() error {
	program, err := find("the plugin's program", r.Command[0])
	if err != nil {
		return err
	}
	r.Programs = []string{program}
	if len(r.Driver) > 0 {
		if program, err = find("the driver", r.Driver[0]); err != nil {
			return err
		}
		r.Programs = append(r.Programs, program)
	}
	return nil
}

func find(role, program string) (string, error) {
	path, err := exec.LookPath(program)
	for cause := err; cause != nil; cause = errors.Unwrap(cause) {
		err = cause // without the name, which is in the message
	}
	if err != nil {
		return "", fmt.Errorf("cannot find %s %s: %w", role, program, err)
	}
	return filepath.Abs(path)
}

// Close kills the processes that still run, and removes the temporary directory and the sockets in the plugin directory.
func (r *Runner) Close() error {
	var errs []error
	if r.group != nil {
		now, cancel := context.WithCancel(context.Background())
		cancel() // without a grace period: the rules have been checked
		errs = append(errs, r.group.Close(now))
		for _, i := range r.Instances {
			i.reading.Wait()
			_ = i.handle.Release() // fails only if it was released before
		}
		r.Sweep()
	}
	if r.stopHost != nil {
		r.stopHost()
	}
	if r.Kubelet != nil {
		r.Kubelet.Close()
	}
	if err := errors.Join(append(errs, os.RemoveAll(r.Base))...); err != nil {
		return fmt.Errorf("cannot clean up after the verification: %w", err)
	}
	return nil
}

func (r *Runner) launch() (*Instance, error) {
	var driver *Instance
	if len(r.Driver) > 0 {
		var err error
		if driver, err = r.launchOne(r.Programs[1], r.Driver, nil); err != nil {
			return nil, err
		}
	}
	var stdin []byte
	if !r.NoHandshake {
		var line strings.Builder
		err := handshake.Write(&line, handshake.Handshake{HostSocket: r.hostSocket(), Ticket: "verify", PluginSocket: r.Socket})
		if err != nil {
			return nil, err
		}
		stdin = []byte(line.String())
	}
	i, err := r.launchOne(r.Programs[0], r.Command, stdin)
	if err != nil {
		if driver != nil {
			err = errors.Join(err, driver.Kill())
		}
		return nil, err
	}
	i.driver = driver
	return i, nil
}

func (r *Runner) launchOne(program string, command []string, stdin []byte) (*Instance, error) {
	place := strings.NewReplacer(
		"{socket}", r.Socket, "{dir}", r.Dir, "{tmp}", r.tmp, PlaceInstance, strconv.Itoa(r.number))
	args := make([]string, len(command))
	for i, arg := range command {
		args[i] = place.Replace(arg)
	}
	proc, err := r.group.Start(process.Spec{
		Name: filepath.Base(program), Path: program, Args: args, Env: r.environment(place, stdin != nil),
		Stdin: func() ([]byte, error) { return stdin, nil },
	})
	if err != nil {
		return nil, err
	}
	i, err := newInstance(proc, r.output)
	r.Instances = append(r.Instances, i)
	return i, err
}

// environment returns the environment of this process without the variables of its own supervisor, plus those that name the plugin's paths.
func (r *Runner) environment(place *strings.Replacer, handshaken bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		key, _, _ := strings.Cut(entry, "=")
		return slices.Contains([]string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", handshake.Env}, key)
	})
	env = append(env, "PATCHBAY_SOCKET="+r.Socket, "PATCHBAY_PLUGIN_DIR="+r.Dir, "PATCHBAY_TMP_DIR="+r.tmp,
		"PATCHBAY_INSTANCE="+strconv.Itoa(r.number))
	if handshaken {
		env = append(env, handshake.Env+"="+handshake.EnvValue)
	}
	for _, entry := range r.Env {
		env = append(env, place.Replace(entry))
	}
	return env
}

// Start starts the plugin and blocks until its registration socket accepts connections, at most for StartTimeout. That is the first socket
// that answers GetInfo, even with an error, or the one at Socket. After an error no process is left; the appearance then describes a socket
// that cannot be used, and is nil if none appeared.
func (r *Runner) Start(ctx context.Context) (*Instance, *Appearance, error) {
	bounded, cancel := context.WithTimeout(ctx, r.StartTimeout)
	defer cancel()
	appeared, stop, err := watchSockets(bounded, r.Dir)
	if err != nil {
		return nil, nil, err
	}
	defer stop()
	if r.Kubelet != nil {
		r.Kubelet.Forget() // the registrations of an earlier instance
	}
	began := time.Now()
	i, err := r.launch()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot start %s: %w", r.Programs[0], err)
	}
	var a *Appearance
	if r.Kubelet == nil {
		a, err = r.await(bounded, appeared, i, began)
	} else if a, err = r.AwaitRegister(bounded, i, r.StartTimeout); a != nil {
		a.After = time.Since(began) - a.Window
	}
	switch {
	case err == nil:
		i.Served = time.Now()
		return i, a, nil
	case i.HasEnded():
		err = fmt.Errorf("the command ended before it served: %s", i.End())
	case bounded.Err() != nil && a == nil && r.Kubelet == nil:
		err = fmt.Errorf("no registration socket appeared in %s within %v%s%s", r.Dir, r.StartTimeout, i.lastWords(), r.lookedAt(ctx))
	}
	return nil, a, errors.Join(err, i.Kill())
}

// StartAfter starts another instance after first, which may still run. It waits for the next second of the clock, because plugins that put
// the time into the names of their sockets mostly use seconds.
func (r *Runner) StartAfter(ctx context.Context, first *Instance) (*Instance, *Appearance, error) {
	Pause(ctx, time.Until(first.Served.Truncate(time.Second).Add(time.Second)), nil)
	return r.Start(ctx)
}

// StartBeside is StartAfter with a new instance number, for an instance that runs at the same time as first.
func (r *Runner) StartBeside(ctx context.Context, first *Instance) (*Instance, *Appearance, error) {
	r.number++
	return r.StartAfter(ctx, first)
}

// HasInstanceNumber reports whether each instance gets its own command line or environment.
func (r *Runner) HasInstanceNumber() bool {
	return slices.ContainsFunc(slices.Concat(r.Command, r.Env, r.Driver), func(text string) bool {
		return strings.Contains(text, PlaceInstance)
	})
}

// serialWriter serializes writes and ignores errors and panics of w, so that the plugin does not notice them.
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
