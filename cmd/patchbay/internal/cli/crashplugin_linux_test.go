package cli_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// countedPlugin is a plugin that says what which process does with it.
type countedPlugin struct {
	announcer

	said   func(what word, by int)
	socket string
	server *grpc.Server
	served sync.WaitGroup
}

type announcer interface {
	registerapi.RegistrationServer
	Statuses() <-chan *registerapi.RegistrationStatus
}

// newCountedPlugin starts a plugin whose socket appears in one step, serving.
func newCountedPlugin(name, socket string, said func(word, int)) (*countedPlugin, error) {
	hidden := filepath.Join(filepath.Dir(socket), "."+filepath.Base(socket)) // until it listens
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: hidden})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	if err := os.Rename(hidden, socket); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	p := &countedPlugin{
		announcer: pluginwatcher.NewTestExamplePlugin(name, crashType, socket, "v1beta1"), said: said, socket: socket, server: grpc.NewServer(),
	}
	registerapi.RegisterRegistrationServer(p.server, p)
	p.served.Go(func() {
		if err := p.server.Serve(peerListener{listener}); err != nil && !errors.Is(err, grpc.ErrServerStopped) { // before it began
			panic(err)
		}
	})
	return p, nil
}

func (p *countedPlugin) GetInfo(ctx context.Context, request *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if err := p.say(ctx, asked); err != nil {
		return nil, err
	}
	return p.announcer.GetInfo(ctx, request)
}

func (p *countedPlugin) NotifyRegistrationStatus(
	ctx context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	what := refused
	if status.PluginRegistered {
		what = registered
	}
	if err := p.say(ctx, what); err != nil {
		return nil, err
	}
	return p.announcer.NotifyRegistrationStatus(ctx, status)
}

func (p *countedPlugin) say(ctx context.Context, what word) error {
	from, _ := peer.FromContext(ctx)
	by, err := strconv.Atoi(from.Addr.String())
	if err == nil {
		p.said(what, by)
	}
	return err
}

// Stop removes the socket and waits for the end of calls.
func (p *countedPlugin) Stop() error {
	err := os.Remove(p.socket)
	p.server.GracefulStop()
	p.served.Wait()
	return err
}

// peerListener has the address of whoever connects be the number of the process: what a daemon says may arrive after its end.
type peerListener struct{ *net.UnixListener }

func (l peerListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	from, err := sock.PeerOf(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return peerConn{conn, from.PID}, nil
}

type peerConn struct {
	net.Conn

	pid int
}

func (c peerConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix", Name: strconv.Itoa(c.pid)} }

// processPlugin is a plugin in a process of its own, whose end is a kill.
type processPlugin struct {
	cmd      *exec.Cmd
	socket   string
	statuses chan *registerapi.RegistrationStatus
	read     chan struct{}
}

func (p *processPlugin) Statuses() <-chan *registerapi.RegistrationStatus { return p.statuses }

func (p *processPlugin) Stop() error {
	_ = p.cmd.Process.Kill()
	<-p.read
	_ = p.cmd.Wait()
	return os.Remove(p.socket)
}
