package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/bench/internal/manager"
)

const (
	// floorWorkers is how many plugins the floor registers at the same time.
	floorWorkers = 16
	// floorQueue is more than the number of plugins in any benchmark, so that the file events are always read at once.
	floorQueue = 1 << 14
)

// runFloor is the least that finds plugins and registers them: fsnotify, grpc-go, and the two calls of the registration service on a
// fresh connection. It looks at no directory below, recognizes nothing, keeps nothing, and repeats nothing that failed.
func runFloor(ctx context.Context, dir string, j *manager.Journal) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return err
	}
	queue := make(chan string, floorQueue)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(queue)
	for range floorWorkers {
		workers.Go(func() {
			for path := range queue {
				if err := floorRegister(ctx, path, j); err != nil {
					fmt.Fprintln(os.Stderr, "floor:", path, err)
				}
			}
		})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		queue <- filepath.Join(dir, entry.Name())
	}
	j.Ready()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			switch {
			case event.Has(fsnotify.Create):
				queue <- event.Name
			case event.Has(fsnotify.Remove):
				name := filepath.Base(event.Name)
				if err := j.Deregistered(name); err != nil {
					return err
				}
				j.Gone(name, "")
			}
		case err := <-watcher.Errors:
			return err
		}
	}
}

func floorRegister(ctx context.Context, path string, j *manager.Journal) error {
	conn, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialListening))
	if err != nil {
		return err
	}
	name, err := floorCalls(ctx, conn, j)
	if err := errors.Join(err, conn.Close()); err != nil {
		return err
	}
	j.Settled(name, "")
	return nil
}

// floorCalls asks a plugin for its name and tells it that it is registered.
func floorCalls(ctx context.Context, conn *grpc.ClientConn, j *manager.Journal) (name string, err error) {
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return "", err
	}
	if err := j.Registered(info.GetName()); err != nil {
		return "", err
	}
	_, err = client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
	return info.GetName(), err
}

// dialListening dials a socket on which its plugin may be about to listen. It tries without a pause, which nothing beats: gRPC's own
// back-off would be a second.
func dialListening(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		runtime.Gosched()
	}
}
