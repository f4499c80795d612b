//go:build linux

package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// lateOnce is a plugin that listens late at its first start.
const lateOnce = "late once"

// playProcess runs a plugin that breaks the named rule about processes.
func playProcess(rule string) {
	act := play
	rule, registers := strings.CutPrefix(rule, kubeletOf)
	if registers {
		act = playDevicePlugin
	} else if rule == bareDriver || rule == bareRegistrar {
		act = playPart
	} else if healthy[rule] != nil {
		act = playHealthy
	}
	if err := act(rule); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func play(rule string) error {
	path := os.Getenv("PATCHBAY_SOCKET")
	if rule == sideBySide {
		path += os.Getenv("SIDE")
	}
	if rule == "PRC001" {
		return errors.New("no mood to serve")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	living, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil && rule == "PRC007" { // removes the socket of the running instance, and fails
		return errors.Join(errors.New("now there is none"), living.Close(), os.Remove(path))
	}
	if err == nil {
		return errors.Join(errors.New("another instance serves"), living.Close())
	}
	if rule != "PRC006" {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if rule == "open to all" {
		syscall.Umask(0)
	}
	bound := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if rule == "PRC002" || rule == lateOnce {
		bound = path
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: bound}); err != nil {
		return err
	}
	late := rule == "PRC002"
	if rule == lateOnce { // as on a busy machine
		late = os.Mkdir(filepath.Join(os.Getenv("PATCHBAY_TMP_DIR"), "late"), 0o700) == nil
	}
	if late {
		<-time.After(20 * insistence) // long, because a busy machine delays the verifier, too
	}
	if err := syscall.Listen(fd, 128); err != nil {
		return err
	}
	if bound != path {
		if err := os.Link(bound, path); err != nil {
			return errors.Join(err, os.Remove(bound))
		}
		if err := os.Remove(bound); err != nil {
			return err
		}
	}
	listener, err := net.FileListener(os.NewFile(uintptr(fd), path))
	if err != nil {
		return err
	}
	if rule == "PRC005" {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "notes"), nil, 0o600); err != nil {
			return err
		}
	}
	f := newFake(orPlain(broken[rule].of))
	switch rule {
	case "devices":
		f = newFake(registerapi.DevicePlugin)
	case sideBySide:
		f = newFake(registerapi.DRAPlugin)
	}
	f.devBroke, f.dra.broken = rule, rule
	f.fragile = rule == "REG013"
	f.server = f.newServer()
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(listener) }()
	select {
	case <-ctx.Done():
	case err := <-served: // a call that ends it
		return err
	}
	if rule == "PRC003" {
		<-time.After(time.Minute)
	}
	if rule == burnsAtEnd {
		runtime.GOMAXPROCS(8 * runtime.NumCPU())
		for range 8 * runtime.NumCPU() {
			go func() {
				for { //nolint:revive,staticcheck // it must spin
				}
			}()
		}
		select {}
	}
	f.server.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	if rule == "PRC004" {
		return nil
	}
	return os.Remove(path)
}

var _ registerapi.RegistrationServer = (*fake)(nil)
