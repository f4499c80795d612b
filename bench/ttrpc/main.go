// Ttrpc is the contestant "ttrpc": fork and exec, and github.com/containerd/ttrpc on a Unix socket, which is what containerd and its shims
// do. It is a module of its own, so that its dependencies do not choose the versions that the others are built with.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/containerd/ttrpc"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

func main() {
	if err := launch.Serve(func(dir string) (launch.Host, error) { return host{dir: dir}, nil }, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "ttrpc:", err)
		os.Exit(1)
	}
}

// host launches plugins that write a byte to standard output when they listen.
type host struct {
	launch.Incomplete

	dir string
}

// Launch implements [launch.Host].
func (h host) Launch(program, name string) (launch.Plugin, error) {
	ctx, socket := context.Background(), filepath.Join(h.dir, name+".sock")
	cmd := exec.CommandContext(ctx, program, socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(stdout, make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("the plugin does not listen: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	p := launched{cmd, ttrpc.NewClient(conn)}
	return p, p.Call(ctx)
}

type launched struct {
	cmd    *exec.Cmd
	client *ttrpc.Client
}

// Call implements [launch.Plugin].
func (l launched) Call(ctx context.Context) error {
	return l.client.Call(ctx, v1beta1.Example_ServiceDesc.ServiceName, "GetExampleInfo", &v1beta1.ExampleRequest{}, &v1beta1.ExampleResponse{})
}

// Stop implements [launch.Plugin].
func (l launched) Stop() error {
	err := errors.Join(l.client.Close(), l.cmd.Process.Kill())
	// It says that it was killed.
	_ = l.cmd.Wait()
	return err
}
