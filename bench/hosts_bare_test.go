package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// bare is the least that launches a plugin and calls it: fork and exec, a byte that says that the plugin listens, and grpc-go.
type bare struct {
	launch.Incomplete

	dir string
}

func openBare(dir string) (launch.Host, error) { return bare{dir: dir}, nil }

// Launch implements [launch.Host].
func (h bare) Launch(program, name string) (launch.Plugin, error) {
	socket := filepath.Join(h.dir, name+".sock")
	cmd := command(program, socket)
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
	p, err := dial(socket)
	if err != nil {
		return nil, err
	}
	return barePlugin{dialled: p, cmd: cmd}, nil
}

// command returns a command that does not outlive this process.
func command(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// end kills a command that was started and waits for it.
func end(cmd *exec.Cmd) error {
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	// It says that it was killed.
	_ = cmd.Wait()
	return nil
}

// dialled is a connection of a host's own to a plugin.
type dialled struct {
	conn   *grpc.ClientConn
	client v1beta1.ExampleClient
}

// dial returns a connection on which a call was answered.
func dial(socket string) (dialled, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return dialled{}, err
	}
	d := dialled{conn, v1beta1.NewExampleClient(conn)}
	if err := d.Call(context.Background()); err != nil {
		return dialled{}, errors.Join(err, conn.Close())
	}
	return d, nil
}

// Call implements [launch.Plugin].
func (d dialled) Call(ctx context.Context) error { return call(ctx, d.client) }

func call(ctx context.Context, client v1beta1.ExampleClient) error {
	_, err := client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
	return err
}

type barePlugin struct {
	dialled
	cmd *exec.Cmd
}

// Stop implements [launch.Plugin].
func (p barePlugin) Stop() error { return errors.Join(p.conn.Close(), end(p.cmd)) }
