package main

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

// registrar registers the plugin whose socket is at path, on a fresh connection: it asks for its name, hands that to registered, tells the
// plugin so, and closes the connection.
type registrar func(ctx context.Context, path string, registered func(name string) error) error

// floor returns the least that finds plugins and registers them: fsnotify, and a registrar. It looks at no directory below, recognizes
// nothing, keeps nothing, and repeats nothing that failed.
func floor(register registrar) manager.Contestant {
	return func(ctx context.Context, dir string, j *manager.Journal) error {
		return runFloor(ctx, dir, j, register)
	}
}

func runFloor(ctx context.Context, dir string, j *manager.Journal, register registrar) error {
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
				name := ""
				err := register(ctx, path, func(announced string) error {
					name = announced
					return j.Registered(name)
				})
				if err != nil {
					fmt.Fprintln(os.Stderr, "floor:", path, err)
					continue
				}
				j.Settled(name, "")
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

// registerGRPC is a registrar over grpc-go.
func registerGRPC(ctx context.Context, path string, registered func(string) error) (err error) {
	conn, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialListening))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return err
	}
	if err := registered(info.GetName()); err != nil {
		return err
	}
	_, err = client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
	return err
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
