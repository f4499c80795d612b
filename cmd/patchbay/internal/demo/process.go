package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta2"
)

// process is a child of the demo.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed when the process has exited and was waited for
	// stderr may be read after ended is closed.
	stderr bytes.Buffer
}

// startProcess starts another process of this program. Its temporary files are created in dir.
func startProcess(dir string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program to start it again: %w", err)
	}
	// The context is not the caller's, because Run kills the children in order.
	p := &process{cmd: exec.CommandContext(context.Background(), self, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s again: %w", self, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // most children are killed
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill sends SIGKILL and waits until the process has exited.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop closes the standard input of the process and waits until it has exited.
func (p *process) stop(ctx context.Context) error {
	_ = p.stdin.Close()
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const callTimeout = 2 * time.Second

func callExample(ctx context.Context, conn grpc.ClientConnInterface, version string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if version == "v1beta2" {
		_, err := v1beta2.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta2.ExampleRequest{})
		return err
	}
	_, err := v1beta1.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
	return err
}

// PluginType is the type of the plugins in the demo.
const PluginType = "ExamplePlugin"

// Plugin serves an example plugin on a socket until ctx is done. The versions, separated by commas, are those of its example services.
func Plugin(ctx context.Context, name, socket, versions string) error {
	services := strings.Split(versions, ",")
	p := pluginwatcher.NewTestExamplePlugin(name, PluginType, socket, services...)
	if err := p.Serve(services...); err != nil {
		return err
	}
	<-ctx.Done()
	return p.Stop()
}

// UntilClosed returns a context that is cancelled when ctx is done or stdin is closed.
func UntilClosed(ctx context.Context, stdin io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return ctx, cancel
}
