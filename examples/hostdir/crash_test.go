//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// programEnv makes the test binary the program itself.
const programEnv = "PATCHBAY_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		os.Exit(0)
	}
	leaktest.Main(m)
}

// bench is a driver in a process of its own, and clients of it.
type bench struct {
	t      *testing.T
	dir    string
	socket string
	conn   *grpc.ClientConn

	mu sync.Mutex
	// there says of a volume by its name that CreateVolume, or DeleteVolume, was answered last; one of which neither is certain is
	// missing.
	there map[string]bool
}

// start starts the driver and gives the bench a connection to it, which no earlier one has had.
func (b *bench) start() *exec.Cmd {
	b.t.Helper()
	cmd := exec.Command(os.Args[0], "--socket", b.socket, "--root", filepath.Join(b.dir, "root"), "--node-id", "n", "--capacity", "1000000")
	cmd.Env = append(os.Environ(), programEnv+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var err error
	b.conn, err = grpc.NewClient("unix:"+b.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
			MinConnectTimeout: time.Minute,
		}))
	if err != nil {
		b.t.Fatal(err)
	}
	conn := b.conn
	b.t.Cleanup(func() { conn.Close() })
	return cmd
}

// live has volumes come and go until a call fails.
func (b *bench) live(ctx context.Context, worker int) {
	var failed error
	for i := 0; failed == nil; i++ {
		failed = b.life(ctx, fmt.Sprintf("v-%d-%d", worker, i%3), i%2 == 0)
	}
}

// life is that of one volume. It may begin anywhere, because every call may be repeated.
func (b *bench) life(ctx context.Context, name string, keep bool) error {
	id, staging, target := idOf(name), filepath.Join(b.dir, name), filepath.Join(b.dir, name+"-target")
	if err := os.MkdirAll(staging, 0o750); err != nil {
		b.t.Error(err)
		return err
	}
	controller, node := csi.NewControllerClient(b.conn), csi.NewNodeClient(b.conn)
	wait := grpc.WaitForReady(true)
	b.note(name, nil)
	_, err := controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{writer}, CapacityRange: &csi.CapacityRange{RequiredBytes: 10},
	}, wait)
	if err != nil {
		return err
	}
	b.note(name, new(true))
	if keep {
		return nil
	}
	for _, call := range []func() error{
		func() error {
			_, err := node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
				VolumeId: id, StagingTargetPath: staging, VolumeCapability: writer,
			}, wait)
			return err
		},
		func() error {
			_, err := node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
				VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: writer,
			}, wait)
			return err
		},
		func() error {
			_, err := node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}, wait)
			return err
		},
		func() error {
			_, err := node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging}, wait)
			return err
		},
	} {
		if err := call(); err != nil {
			return err
		}
	}
	b.note(name, nil)
	if _, err := controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}, wait); err != nil {
		return err
	}
	b.note(name, new(false))
	return nil
}

func (b *bench) note(name string, there *bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if delete(b.there, name); there != nil {
		b.there[name] = *there
	}
}

// check compares what was answered with what the driver knows.
func (b *bench) check(ctx context.Context) {
	b.t.Helper()
	list, err := csi.NewControllerClient(b.conn).ListVolumes(ctx, &csi.ListVolumesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		b.t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, entry := range list.GetEntries() {
		listed[entry.GetVolume().GetVolumeId()] = true
	}
	for name, there := range b.there {
		if listed[idOf(name)] != there {
			b.t.Errorf("volume %s is there: %t; the last answer said %t", name, listed[idOf(name)], there)
		}
	}
}

// The driver is killed at random instants: what it answered holds, and whatever was cut short can be repeated.
func TestKillNineLosesNothing(t *testing.T) {
	const workers = 3
	dir, err := os.MkdirTemp("", "hostdir")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, socket: filepath.Join(dir, "s"), there: map[string]bool{}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	kills := 20
	if testing.Short() {
		kills = 5
	}
	for range kills {
		cmd := b.start()
		b.check(ctx)
		var working sync.WaitGroup
		work, stop := context.WithCancel(ctx)
		for i := range workers {
			working.Go(func() { b.live(work, i) })
		}
		time.Sleep(rand.N(50 * time.Millisecond))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		stop()
		working.Wait()
	}
	cmd := b.start()
	b.check(ctx)
	for i := range workers {
		for j := range 3 {
			if err := b.life(ctx, fmt.Sprintf("v-%d-%d", i, j), false); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the driver ended with %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "root", "*", "*")); len(left) > 0 {
		t.Errorf("at the end, there is %v", left)
	}
	if mounted, err := os.ReadFile("/proc/self/mounts"); err != nil || bytes.Contains(mounted, []byte(dir)) {
		t.Fatalf("at the end, something is mounted below %s: %v", dir, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
