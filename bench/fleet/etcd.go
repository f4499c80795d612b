package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// The process of etcd is this program with these variables.
const (
	dirVariable    = "FLEET_BENCH_ETCD_DIR"
	clientVariable = "FLEET_BENCH_ETCD_CLIENT"
	peerVariable   = "FLEET_BENCH_ETCD_PEER"
)

func isEtcd() bool { return os.Getenv(dirVariable) != "" }

// serveEtcd runs etcd until standard input ends, which it does at the latest with the process that started it.
func serveEtcd() error {
	config := embed.NewConfig()
	config.Dir = os.Getenv(dirVariable)
	client, err := url.Parse(os.Getenv(clientVariable))
	if err != nil {
		return err
	}
	peer, err := url.Parse(os.Getenv(peerVariable))
	if err != nil {
		return err
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.Name + "=" + peer.String()
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(time.Minute): //nolint:forbidigo // the bound of one wait
		return errors.New("etcd does not become ready")
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// etcd is the process of etcd. It keeps its data and addresses when it is started again.
type etcd struct {
	dir, client, peer string
	cmd               *exec.Cmd
}

func newEtcd(dir string) (*etcd, error) {
	e := &etcd{dir: filepath.Join(dir, "etcd")}
	for _, u := range []*string{&e.client, &e.peer} {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is at once
		if err != nil {
			return nil, err
		}
		defer l.Close()
		*u = "http://" + l.Addr().String()
	}
	return e, nil
}

// start returns when etcd is ready.
func (e *etcd) start(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	e.cmd = exec.Command(program) //nolint:noctx // it is ended by its owner
	e.cmd.Env = append(os.Environ(), dirVariable+"="+e.dir, clientVariable+"="+e.client, peerVariable+"="+e.peer)
	e.cmd.Stderr = os.Stderr
	if _, err := e.cmd.StdinPipe(); err != nil { // it ends with this process
		return err
	}
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := e.cmd.Start(); err != nil {
		e.cmd = nil
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = e.cmd.Process.Kill() })
	defer stop()
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return fmt.Errorf("etcd does not start: %w", errors.Join(err, e.kill()))
	}
	return nil
}

func (e *etcd) kill() error {
	if e == nil || e.cmd == nil {
		return nil
	}
	err := e.cmd.Process.Kill()
	_ = e.cmd.Wait() // it says that it was killed
	e.cmd = nil
	return err
}

// cpu returns the processor time that etcd has used since it was started.
func (e *etcd) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", e.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("cannot read the times of the process of etcd")
	}
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // a tick is 10 ms for every process that looks
}

// memory returns the resident size of etcd in MB.
func (e *etcd) memory() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
			return kb / 1000, err
		}
	}
	return 0, errors.New("the process of etcd has no resident size")
}
