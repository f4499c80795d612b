// Package etcd is etcd as a process of a test, which can be stopped, killed and started again.
package etcd

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

// role is the first argument with which a program is etcd.
const role = "etcd"

// Role says whether this program was started by [Process.Start]. It is then etcd until SIGTERM, and ends with the error.
func Role() (etcd bool, err error) {
	if len(os.Args) != 5 || os.Args[1] != role {
		return false, nil
	}
	return true, serve(os.Args[2], os.Args[3], os.Args[4])
}

func serve(dir, client, peer string) error {
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

// Process is etcd as a process of the running program, which keeps its addresses and data over restarts.
type Process struct {
	// Client is the URL for clients.
	Client string

	dir, peer string
	cmd       *exec.Cmd
}

// New returns etcd with its data in a directory. It does not run yet.
func New(dir string) (*Process, error) {
	client, err := rig.FreeAddress()
	if err != nil {
		return nil, err
	}
	peer, err := rig.FreeAddress()
	return &Process{Client: "http://" + client, dir: dir, peer: "http://" + peer}, err
}

// Start returns when etcd is ready.
func (e *Process) Start() error {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", role, e.dir, e.Client, e.peer)
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
		e.Kill()
		return fmt.Errorf("etcd does not start: %w", err)
	}
	return nil
}

// Signal sends etcd a signal.
func (e *Process) Signal(number syscall.Signal) { _ = e.cmd.Process.Signal(number) }

// Kill kills etcd, if it runs.
func (e *Process) Kill() {
	if e.cmd != nil {
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
		e.cmd = nil
	}
}
