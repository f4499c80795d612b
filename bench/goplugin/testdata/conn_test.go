package plugin

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	. "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// cmdrunner stands for the library's package of that name, which is internal.
var cmdrunner struct{ commands }

type commands struct{}

// NewCmdRunner is not called: a RunnerFunc is refused.
func (commands) NewCmdRunner(hclog.Logger, *exec.Cmd) (runner.Runner, error) {
	return nil, errors.New("a RunnerFunc was called")
}

// ReattachFunc returns a function that attaches to a process.
func (commands) ReattachFunc(pid int, _ net.Addr) runner.ReattachFunc {
	return func() (runner.AttachedRunner, error) {
		if pid <= 0 {
			return nil, errors.New("the configuration has no process") // to kill 0 is to kill the whole group
		}
		return process(pid), nil
	}
}

// process is a process that somebody else has started.
type process int

func (p process) Wait(context.Context) error {
	for syscall.Kill(int(p), 0) == nil {
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

func (p process) Kill(context.Context) error { return syscall.Kill(int(p), syscall.SIGKILL) }
func (p process) ID() string                 { return strconv.Itoa(int(p)) }

func (process) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

func (process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// kill stands for what the tests do inside the library's client: it kills the process of the plugin.
func kill(c *pluginclient.Client) error {
	pid, err := strconv.Atoi(c.ID())
	if err != nil {
		return err
	}
	return process(pid).Kill(context.Background())
}

// received is the context that the tests' plugin received last with its connection.
var received context.Context

// ended stands for the end of the context of the library's client, which is the one that a plugin receives.
func ended() <-chan struct{} { return received.Done() }

// served is the plugin that newGRPCConn has started.
type served struct {
	server interface{ Stop() }
	client *pluginclient.Client
}

// Stop stops the plugin.
func (s served) Stop() { s.client.Kill() }

// processOf is the process of a client's plugin.
type processOf struct{ *pluginclient.Client }

// Stop kills the process.
func (p processOf) Stop() {
	if err := kill(p.Client); err != nil {
		panic(err)
	}
}

// newGRPCConn stands for the library's TestPluginGRPCConn, which makes a client and a server in one process. Its plugin serves the same set, and is
// not started again.
func newGRPCConn(t testing.TB, multiplex bool, plugins PluginSet) (*GRPCClient, served) {
	c := pluginclient.NewClient(&ClientConfig{
		Cmd: helperProcess("test-grpc"), HandshakeConfig: testHandshake, Plugins: plugins, AllowedProtocols: []Protocol{ProtocolGRPC},
		GRPCBrokerMultiplex: multiplex,
	}, func(p *launcher.Plugin) { p.Restart.Policy = plugin.RestartNever })
	t.Cleanup(c.Kill)
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	grpcClient, ok := client.(*GRPCClient)
	if !ok {
		t.Fatalf("the client is a %T", client)
	}
	return grpcClient, served{processOf{c}, c}
}
