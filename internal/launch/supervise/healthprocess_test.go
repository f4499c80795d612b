//go:build unix

package supervise

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/plugin"
)

// serveHealth is the plugin of TestHealthOfProcess.
func serveHealth(socket string) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	server.Serve(listener)
}

// TestHealthOfProcess: a real plugin serves, is stopped and continued by signals, and is killed.
func TestHealthOfProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "health")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), socketVariable+"="+socket)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	checks := checks
	checks.Crowd = new(Crowd)
	told := make(chan machine.HealthFound, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		FollowHealth(ctx, conn, checks, func(s machine.HealthFound) { told <- s })
	}()
	until := func(state plugin.ServingStatus) {
		t.Helper()
		for s := range told {
			if s.State == state {
				return
			}
		}
	}
	until(plugin.ServingStatusServing)
	stopped := time.Now()
	cmd.Process.Signal(syscall.SIGSTOP)
	until(plugin.ServingStatusUnresponsive)
	t.Logf("unresponsive after %v", time.Since(stopped))
	cmd.Process.Signal(syscall.SIGCONT)
	until(plugin.ServingStatusServing)
	cmd.Process.Kill()
	until(plugin.ServingStatusUnresponsive)
	cancel()
	<-done
}
