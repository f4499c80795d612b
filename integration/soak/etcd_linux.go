package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// etcdRole is the first argument with which this program is etcd.
const etcdRole = "etcd"

// serveEtcd is etcd until SIGTERM.
func serveEtcd(dir, client, peer string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := embed.NewConfig()
	config.Dir, config.InitialCluster = dir, config.Name+"="+peer
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	var err error
	if config.ListenClientUrls, err = urls(client); err != nil {
		return err
	}
	if config.ListenPeerUrls, err = urls(peer); err != nil {
		return err
	}
	config.AdvertiseClientUrls, config.AdvertisePeerUrls = config.ListenClientUrls, config.ListenPeerUrls
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer etcd.Close()
	select {
	case <-etcd.Server.ReadyNotify():
		fmt.Println("ready")
	case err := <-etcd.Err():
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-etcd.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}

func urls(text string) ([]url.URL, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	return []url.URL{*parsed}, nil
}

// etcd is etcd as a process, which keeps its addresses and data over restarts.
type etcd struct {
	dir, client, peer string
	cmd               *exec.Cmd
}

func newEtcd(dir string) (*etcd, error) {
	client, err := rig.FreeAddress()
	if err != nil {
		return nil, err
	}
	peer, err := rig.FreeAddress()
	return &etcd{dir: dir, client: "http://" + client, peer: "http://" + peer}, err
}

// start returns when etcd is ready.
func (e *etcd) start() error {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", etcdRole, e.dir, e.client, e.peer)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	e.cmd = cmd
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		e.kill()
		return fmt.Errorf("etcd does not start: %w", err)
	}
	return nil
}

func (e *etcd) signal(number syscall.Signal) { _ = e.cmd.Process.Signal(number) }

func (e *etcd) kill() {
	if e.cmd != nil {
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
		e.cmd = nil
	}
}
