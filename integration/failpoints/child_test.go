//go:build linux

package failpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	gofail "go.etcd.io/gofail/runtime"
	"go.uber.org/goleak"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

// Setup is how the daemon of a scene is configured.
type Setup struct {
	Dir      string
	Handlers map[string]string
	Devices  bool // serve kubelet.sock
	Admitter []string
	Launched []catalogue.Plugin
	Etcd     string
}

func (s Setup) path(name string) string { return filepath.Join(s.Dir, name) }

func (s Setup) options() (daemon.Options, error) {
	handlers := maps.Clone(s.Handlers)
	handlers[typeOf(fellow)] = daemon.HandlerAccept
	c := daemon.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	c.SetDefaults()
	c.PluginDirs, c.State, c.ControlSocket = []string{s.path("plugins")}, s.path("state.db"), s.path("control.sock")
	c.DispenseDir, c.HTTP, c.Handlers = s.path("dispense"), "127.0.0.1:0", handlers
	c.Admission.Command, c.Admission.Timeout = s.Admitter, patience
	if s.Devices {
		c.Device.SocketDir = s.path("devices")
	}
	if s.Etcd != "" {
		c.Fleet.Etcd.Endpoints, c.Fleet.Node = []string{s.Etcd}, "node"
	}
	var err error
	if len(s.Launched) > 0 {
		c.Catalogue, err = catalogue.New(s.Launched)
	}
	return c, err
}

// Child is a process with the points, in which the daemons of a scene run, one after the other. Its methods are called by the scene.
type Child struct {
	before goleak.Option // goroutines that are no daemon's

	mu    sync.Mutex
	setup Setup
	// turning has each load of the configuration say something else.
	turning bool
	turned  int
	end     func() error // ends the daemon that runs; nil while none does
}

// None stands for nothing.
type None struct{}

// pipes is the connection to the scene.
type pipes struct {
	io.Reader
	io.WriteCloser
}

// serveChild is the life of a child. It ends with its standard input.
func serveChild() error {
	server := rpc.NewServer()
	c := &Child{before: goleak.IgnoreCurrent()}
	if err := server.Register(c); err != nil {
		return err
	}
	server.ServeConn(pipes{os.Stdin, os.Stdout})
	return nil
}

// Configure says how the daemon is configured, from the next start or reload on.
func (c *Child) Configure(s Setup, _ *None) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setup = s
	return nil
}

// Turn has each load of the configuration, or none, say something else than the one before.
func (c *Child) Turn(on bool, _ *None) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turning = on
	return nil
}

func (c *Child) options() (daemon.Options, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.setup
	if c.turned++; c.turning && c.turned%2 == 1 {
		s.Handlers = maps.Clone(s.Handlers)
		s.Handlers["Turned"] = daemon.HandlerAccept
	}
	return s.options()
}

// Start starts the daemon; the error is that with which it ended at once.
func (c *Child) Start(None, *None) error {
	options, err := c.options()
	if err != nil {
		return err
	}
	options.Load = func() (*config.Loaded, error) {
		next, err := c.options()
		return &next.Loaded, err
	}
	d, err := daemon.New(options)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case err := <-ended:
		cancel()
		return err
	case <-d.Ready():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = func() error {
		cancel()
		return <-ended
	}
	return nil
}

// Stop ends the daemon, if one runs. The error is that with which it ended.
func (c *Child) Stop(None, *None) error {
	c.mu.Lock()
	end := c.end
	c.end = nil
	c.mu.Unlock()
	if end == nil {
		return nil
	}
	return end()
}

// Enable has a point fail.
func (*Child) Enable(a Arm, _ *None) error { return gofail.Enable(a.Point, a.Terms) }

// Disable ends that.
func (*Child) Disable(point string, _ *None) error { return gofail.Disable(point) }

// Reached tells how often a point that is to fail was reached.
func (*Child) Reached(point string, count *int) error {
	var err error
	_, *count, err = gofail.Status(point)
	return err
}

// Leaks says what the daemons have left behind.
func (c *Child) Leaks(None, *None) error { return goleak.Find(c.before) }

// child is such a process, as the scene has it.
type child struct {
	*rpc.Client

	cmd *exec.Cmd
}

// newChild starts a process whose daemons log to a writer.
func newChild(log io.Writer) (*child, error) {
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), roleEnv+"="+daemonRole, "GORACE=atexit_sleep_ms=10"), log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{rpc.NewClient(pipes{stdout, stdin}), cmd}, nil
}

// ask calls a method that answers with nothing but an error.
func (c *child) ask(method string, argument any) error {
	return c.Call("Child."+method, argument, &None{})
}

// close ends the process. It is an error if the race detector found something in it.
func (c *child) close() error {
	if err := errors.Join(c.Close(), c.cmd.Wait()); err != nil {
		return fmt.Errorf("the process of the daemon: %w", err)
	}
	return nil
}
